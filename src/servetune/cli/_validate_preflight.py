"""`servetune validate --preflight`: the engine's own word, from an installation of it, about commands as written."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import click

from servetune.cli._validation import Setting
from servetune.core.engine import EngineChoice, Violation
from servetune.core.errors import ProgramEndedError, UsageError
from servetune.core.judgement import Judgement
from servetune.core.node import EnvRef, NodeFacts
from servetune.core.preflight import Converse, OffersConversation, PreflightVerdict
from servetune.core.space import Assignment
from servetune.core.study import StudySpec


class EngineWord:
    """Adds what the engine itself says. What is no judgement of its checks adds nothing; that is said once."""

    def __init__(self, preflight: Any) -> None:
        self._preflight, self._said = preflight, False

    def refusal(self, assignment: Assignment) -> Violation | None:
        """Why the engine refuses an assignment; None where it does not, or says nothing. Raises ProgramEndedError."""
        verdict: PreflightVerdict = self._preflight.ask(assignment)
        if verdict.ok or not self._decided(verdict):
            return None
        found: Violation = self._preflight.violation(assignment, verdict)
        return found

    def _decided(self, verdict: PreflightVerdict) -> bool:
        if not verdict.decided and not self._said:
            self._said = True
            click.echo(f"the engine's checks could not judge a command: {verdict.message}", err=True)
        return verdict.decided

    def added(self, found: Judgement, arguments: Sequence[str]) -> Judgement:
        """The judgement with a violation of layer `preflight` where the engine refuses. Raises ProgramEndedError."""
        verdict = self._preflight.judge_written(arguments)
        if verdict.ok or not self._decided(verdict):
            return found
        violation = self._preflight.violation(dict.fromkeys(_flags(arguments), ""), verdict)
        return found.model_copy(update={"verdict": "refused", "violations": (*found.violations, violation)})


def _flags(arguments: Sequence[str]) -> Iterator[str]:
    yield from (word[2:].partition("=")[0] for word in arguments if word.startswith("--") and len(word) > 2)


@contextmanager
def engine_word(against: Setting, python: str | None) -> Iterator[EngineWord]:
    """The engine that `python` on this machine has installed, or the study's own on its node.

    The described node's GPUs are presented to an engine that is asked elsewhere. Raises UsageError when it cannot be
    asked.
    """
    from servetune import plugins

    spec, facts = against.spec, against.facts
    program = python or (spec.engine.python if spec is not None else None)
    if program is None:
        raise UsageError("--preflight needs an installed engine: name its interpreter with --engine-python")
    choice = EngineChoice(model="") if spec is None else spec.engine
    secrets: Mapping[str, EnvRef] = {} if spec is None else spec.secret_flags
    with ExitStack() as held:
        converse, there = _way(spec if python is None else None, facts, held)
        folder = held.enter_context(tempfile.TemporaryDirectory())
        model = choice.model if there else _model_folder(facts.config_json, Path(folder)) or choice.model
        choice = choice.model_copy(update={"python": program, "model": model, "version": facts.engine_version})
        engine = plugins.load("engines", choice.name).create(choice, secrets)
        try:
            described = not there and facts.node != "local"
            preflight = held.enter_context(closing(engine.preflight(converse, facts, described=described)))
            version = preflight.version
            if version != facts.engine_version:
                raise UsageError(f"{program} has version {version} of the engine, not {facts.engine_version}")
            yield EngineWord(preflight)
        except ProgramEndedError as error:
            raise UsageError(f"the engine's own checks cannot be asked: {error}") from error


def _way(spec: StudySpec | None, facts: NodeFacts, held: ExitStack) -> tuple[Converse, bool]:
    """How the engine is talked with, and whether that is over the study's own far node."""
    from servetune.nodes import local
    from servetune.tuner.opening import at_node

    if spec is not None and facts.node == spec.node.name != "local":
        node = held.enter_context(at_node(spec))
        if isinstance(node, OffersConversation) and not facts.simulated:
            return node.converse, True
    return local.create(local.Settings(), Path.cwd()).converse, False


def _model_folder(config: Mapping[str, Any], folder: Path) -> str | None:
    if not config:
        return None
    (folder / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    return str(folder)
