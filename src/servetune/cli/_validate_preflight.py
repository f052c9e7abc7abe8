"""`servetune validate --preflight`: the engine's own word, from an installation of it, about commands as written."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click

from servetune.cli._validation import Setting
from servetune.core.engine import EngineChoice
from servetune.core.errors import ProgramEndedError, UsageError
from servetune.core.judgement import Judgement
from servetune.core.node import EnvRef


class EngineWord:
    """Adds what the engine itself says. What is no judgement of its checks adds nothing; that is said once."""

    def __init__(self, preflight: Any) -> None:
        self._preflight, self._said = preflight, False

    def added(self, found: Judgement, arguments: Sequence[str]) -> Judgement:
        """The judgement with a violation of layer `preflight` where the engine refuses. Raises ProgramEndedError."""
        verdict = self._preflight.judge_written(arguments)
        if not verdict.decided and not self._said:
            self._said = True
            click.echo(f"the engine's checks could not judge a command: {verdict.message}", err=True)
        if verdict.ok or not verdict.decided:
            return found
        violation = self._preflight.violation(dict.fromkeys(_flags(arguments), ""), verdict)
        return found.model_copy(update={"verdict": "refused", "violations": (*found.violations, violation)})


def _flags(arguments: Sequence[str]) -> Iterator[str]:
    yield from (word[2:].partition("=")[0] for word in arguments if word.startswith("--") and len(word) > 2)


@contextmanager
def engine_word(against: Setting, python: str | None) -> Iterator[EngineWord]:
    """The engine that `python`, or the study's own, has installed; the described node's GPUs are presented to it.

    Raises UsageError when the engine cannot be asked.
    """
    from servetune import plugins
    from servetune.nodes import local

    spec, facts = against.spec, against.facts
    program = python or (spec.engine.python if spec is not None else None)
    if program is None:
        raise UsageError("--preflight needs an installed engine: name its interpreter with --engine-python")
    with tempfile.TemporaryDirectory() as folder:
        choice = EngineChoice(model="") if spec is None else spec.engine
        model = _model_folder(facts.config_json, Path(folder)) or choice.model
        choice = choice.model_copy(update={"python": program, "model": model, "version": facts.engine_version})
        secrets: Mapping[str, EnvRef] = {} if spec is None else spec.secret_flags
        engine = plugins.load("engines", choice.name).create(choice, secrets)
        here = local.create(local.Settings(), Path.cwd())
        try:
            with closing(engine.preflight(here.converse, facts, described=facts.node != "local")) as preflight:
                version = preflight.version
                if version != facts.engine_version:
                    raise UsageError(f"{program} has version {version} of the engine, not {facts.engine_version}")
                yield EngineWord(preflight)
        except ProgramEndedError as error:
            raise UsageError(f"the engine's own checks cannot be asked: {error}") from error


def _model_folder(config: Mapping[str, Any], folder: Path) -> str | None:
    if not config:
        return None
    (folder / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    return str(folder)
