"""How packages get into a Python of a node: what a person is told to type there, by what that Python can do."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence

from servetune.nodes._shell import under

#: Debian's own Python and others take nothing by pip: PEP 668's file says so. An environment may have no pip (uv's).
_ASK = """
import importlib.util, json, os, shutil, sys, sysconfig
paths, own = sysconfig.get_paths(), sys.prefix != sys.base_prefix
print(json.dumps({
    "python": sys.executable,
    "home": next((place for place in (os.path.expanduser("~"), "/var/tmp") if os.access(place, os.W_OK)), "/var/tmp"),
    "pip": importlib.util.find_spec("pip") is not None,
    "ensurepip": importlib.util.find_spec("ensurepip") is not None,
    "uv": shutil.which("uv"),
    "closed": not own and os.path.exists(os.path.join(paths["stdlib"], "EXTERNALLY-MANAGED"))
    or own and not os.access(paths["purelib"], os.W_OK),
    "debian": os.path.exists("/etc/debian_version"),
    "minor": sys.version_info[1],
}))
"""

Run = Callable[[str], tuple[int, str]]


def installing(run: Run, activate: str, python: str, packages: Sequence[str], key: str) -> str:
    """The commands, in backquotes, that bring `packages` to `python`. `key`: the setting that may name another one."""
    words = shlex.join(packages)
    try:
        found = json.loads(run(under(activate, shlex.join([python, "-c", _ASK])))[1].strip().splitlines()[-1])
        program, home = shlex.quote(found["python"]), found["home"]
    except (ValueError, LookupError, TypeError):
        return f"`{shlex.quote(python)} -m pip install {words}` on the node, or name another {key}"
    if found["closed"]:
        folder = f"{home}/servetune-env"
        made = f"{program} -m venv {shlex.quote(folder)}"
        first = ""
        if not found["ensurepip"]:
            first = f"`apt-get install -y python3.{found['minor']}-venv` as root, then " if found["debian"] else ""
        install = f"`{made} && {shlex.quote(folder)}/bin/python -m pip install {words}`"
        return f"{first}{install} on the node, and name {folder}/bin/python as {key} (this one takes nothing)"
    install = f"{program} -m pip install {words}"
    if not found["pip"]:
        bare = f"{shlex.quote(found['uv'] or 'uv')} pip install --python {program} {words}"
        install = f"{program} -m ensurepip && {install}" if found["ensurepip"] and not found["uv"] else bare
    return f"`{install}` on the node, or name another {key}"
