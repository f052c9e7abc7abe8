"""What a server is given: secrets resolved, and the tuner's environment without what is none of its business."""

from __future__ import annotations

import re
from collections.abc import Mapping

from servetune.core.errors import SpecError
from servetune.core.node import EnvRef, LaunchSpec, Text

# Names that hold secrets by convention, and addresses such as postgresql://user:password@host; a proxy's is needed.
_SECRET_NAME = re.compile(r"(TOKEN|KEY|PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL)S?$|^PGPASS", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"://[^/@:]*:[^/@]+@")
_PROXY_NAME = re.compile(r"_PROXY$", re.IGNORECASE)

# py-setproctitle (SGLang's schedulers name themselves) writes its title over /proc/PID/environ, markers included,
# unless this variable is set. Seen with 1.3.7: without it the whole block reads as zeros.
_KEEP_ENVIRON = {"SPT_NOENV": "1"}


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of the tuner's environment that a server gets.

    A server needs PATH, HOME, LD_LIBRARY_PATH, CUDA_*, NCCL_*, HF_* and whatever else a person's shell would give it,
    so all is passed on, except two kinds. Markers of our own: a tuner may run inside a marked environment. And secrets
    that the study does not name (cloud and database credentials of the tuner): what the server does not have it cannot
    print, and a launch that needs one must say so, else the exported command would not be what was measured.
    """
    return {name: value for name, value in environ.items() if not _kept_back(name, value)}


def _kept_back(name: str, value: str) -> bool:
    if name.upper().startswith("SERVETUNE_") or _SECRET_NAME.search(name):
        return True
    return _URL_PASSWORD.search(value) is not None and not _PROXY_NAME.search(name)


def resolved(
    spec: LaunchSpec, environ: Mapping[str, str], far: bool = False
) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """(argv, environment, secrets by variable name). Raises SpecError for a secret that is not set, or not usable.

    `far`: for another machine, which gets nothing of this one's environment but the secrets that the spec names.
    """
    secrets = {name: _secret(name, environ) for name in sorted(spec.secrets())}
    argv = [_text(word, secrets) for word in spec.argv]
    if not argv or not argv[0]:
        raise SpecError("the launch command is empty: the engine gave no program to start")
    own = {name: _text(value, secrets) for name, value in spec.env.items()}
    for name in own:
        if not name or "=" in name:
            raise SpecError(
                f"{name!r} is not a name of an environment variable; change it under env: in the study file"
            )
    for text in [*argv, *own, *own.values()]:
        _check_bytes(text)
    return argv, ({} if far else inherited(environ)) | _KEEP_ENVIRON | own, secrets


def _secret(name: str, environ: Mapping[str, str]) -> str:
    value = environ.get(name, "")
    if not value:
        state = "empty" if name in environ else "not set"
        raise SpecError(
            f"environment variable {name} is {state}, and the study refers to it ({{from_env: {name}}}); "
            f"export {name}=… in the shell that runs servetune"
        )
    return value


def _text(text: Text, secrets: Mapping[str, str]) -> str:
    return secrets[text.from_env] if isinstance(text, EnvRef) else text


def _check_bytes(text: str) -> None:
    try:
        usable = b"\0" not in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise SpecError(
            f"{text!r} cannot be passed to a program: it holds a NUL or half a surrogate pair; "
            "change it in the study file"
        )
