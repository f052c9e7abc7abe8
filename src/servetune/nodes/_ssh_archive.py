"""The part of servetune that runs on the node, as one file: `python servetune.pyz MODULE ARGUMENT…`.

It needs Python 3.11 with numpy, pydantic, httpx and uvloop (and PyYAML and httptools for a rehearsal), all of which an
SGLang environment has or may have. On its first run it unpacks itself beside itself, so that Python can keep what it
compiled.
"""

from __future__ import annotations

import functools
import io
import zipfile
from pathlib import Path

import servetune

_PARTS = ("__init__.py", "plugins.py", "core", "benchmarks", "simulation")
_THEN = (1980, 1, 1, 0, 0, 0)  # the same content is the same file

_MAIN = """
import os, runpy, sys, tempfile, zipfile
if sys.version_info < (3, 11):
    sys.exit("servetune needs Python 3.11 or newer on the node, found " + sys.version.split()[0])
here = os.path.dirname(os.path.abspath(__file__))
folder = here + ".d"
try:
    if not os.path.isdir(folder):
        made = tempfile.mkdtemp(prefix=os.path.basename(folder), dir=os.path.dirname(folder))
        zipfile.ZipFile(here).extractall(made)
        try:
            os.rename(made, folder)
        except OSError:
            pass
    if os.path.isdir(folder):
        sys.path[0] = folder
except OSError:
    pass
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__")
"""


@functools.cache
def archive() -> bytes:
    """The file."""
    root = Path(servetune.__file__).parent
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr(zipfile.ZipInfo("__main__.py", _THEN), _MAIN)
        for path in sorted(file for part in _PARTS for file in _files(root / part)):
            name = f"servetune/{path.relative_to(root).as_posix()}"
            info = zipfile.ZipInfo(name, _THEN)
            info.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(info, path.read_bytes())
    return made.getvalue()


def _files(part: Path) -> list[Path]:
    found = [part] if part.is_file() else part.rglob("*")
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]
