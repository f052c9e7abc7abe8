"""The command as data: argv, environment and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Sequence

from servetune.core.node import EnvRef, LaunchSpec, Text


def render(launch: LaunchSpec, header: Sequence[str]) -> str:
    """`{argv, env, port, ready_path, about}`; a secret is `{"from_env": NAME}`."""
    document = {
        "argv": [_plain(word) for word in launch.argv],
        "env": {name: _plain(value) for name, value in sorted(launch.env.items())},
        "port": launch.port,
        "ready_path": launch.ready_path,
        "about": list(header),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _plain(text: Text) -> str | dict[str, str]:
    return {"from_env": text.from_env} if isinstance(text, EnvRef) else text
