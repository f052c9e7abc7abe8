"""Which engine a Python interpreter has."""

from __future__ import annotations

import json

ASK_ENGINE = """
import importlib.metadata, json, platform, sys
try:
    version = importlib.metadata.version(sys.argv[1])
except importlib.metadata.PackageNotFoundError:
    version = None
print(json.dumps([platform.python_version(), version]))
"""


def read_versions(text: str) -> tuple[str, str | None]:
    """(Python version, engine version if it is installed) out of what ASK_ENGINE printed."""
    python, engine = json.loads(text.splitlines()[-1])
    return python, engine
