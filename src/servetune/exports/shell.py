"""A runnable bash script: a header that tells where the command comes from, the environment, and the exact argv."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from servetune.core.node import EnvRef, LaunchSpec, Text


def render(launch: LaunchSpec, header: Sequence[str]) -> str:
    """`header`: lines of text, made comments here. The last command is the measured argv, byte for byte.

    Splitting the script with `shlex.split(script, comments=True)` gives every `NAME=value` and every word unchanged.
    A secret is a reference to the variable of that name, which must be set where the script runs.
    """
    comments = [f"# {line}".rstrip() for text in header for line in (text.splitlines() or [""])]
    exports = [f"export {name}={_word(value)}" for name, value in sorted(launch.env.items())]
    required = [f': "${{{name}:?set {name} first: it holds a secret}}"' for name in sorted(launch.secrets())]
    command = "exec " + " ".join(_word(word) for word in launch.argv)
    return "\n".join(["#!/usr/bin/env bash", *comments, "set -euo pipefail", *required, *exports, command, ""])


def _word(text: Text) -> str:
    return f'"${{{text.from_env}}}"' if isinstance(text, EnvRef) else shlex.quote(text)
