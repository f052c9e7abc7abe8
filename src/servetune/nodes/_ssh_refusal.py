"""Why a node started nothing, as the error that a person sees."""

from __future__ import annotations

from servetune.core.errors import NodeUnusableError, ServetuneError, SpecError
from servetune.nodes._shell import Detached


def refusal(launch: Detached, said: str, host: str) -> ServetuneError:
    """`said`: what `_shell.start` printed in place of a start."""
    program = launch.argv[0]
    advice = "give an absolute path, or a name on PATH there (see node.activate), as engine.python in the study file"
    if said == "missing":
        return SpecError(f"program {program!r} does not exist on {host}; {advice}")
    if said == "plain":
        return SpecError(f"program {program!r} is not executable on {host}; {advice}")
    if said == "activate":
        return SpecError(f"node.activate fails on {host}: {launch.activate!r}; try it there in a shell")
    if said == "cwd":
        return SpecError(f"node.cwd: there is no directory {launch.cwd} on {host}")
    return NodeUnusableError(
        f"nothing can be started in {launch.folder} on {host}: {said[-300:]}; free space there, correct its owner, "
        "or name another node.workdir"
    )
