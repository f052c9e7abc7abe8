"""A Python in which a stand-in for the engine is installed: fakes/engine_package."""

import sys
from pathlib import Path

PACKAGE = Path(__file__).parent / "fakes" / "engine_package"


def python(folder, trouble=""):
    """An interpreter in `folder`; `trouble`: how its engine misbehaves (see the package)."""
    path = folder / "python"
    words = ["#!/bin/sh", f"PYTHONPATH='{PACKAGE}' FAKE_ENGINE='{trouble}' exec '{sys.executable}' \"$@\"", ""]
    path.write_text("\n".join(words))
    path.chmod(0o755)
    return str(path)
