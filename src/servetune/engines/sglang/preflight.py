"""SGLang's own checks on a node: the program that runs there, and how its answers become verdicts and violations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from servetune.core.engine import Violation
from servetune.core.errors import ProgramEndedError
from servetune.core.node import LaunchSpec, NodeFacts
from servetune.core.preflight import Helper, PreflightVerdict
from servetune.core.space import Assignment, Value
from servetune.engines.sglang._sent_program import SentProgram, text_of

#: Importing SGLang from a slow file system takes minutes; one answer that takes this long is none.
READY_S, ANSWER_S = 600.0, 150.0
_PROGRAM = ("_presented_gpus", "_preflight_program")
_WORD = re.compile(r"[a-z0-9_-]+")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_HIDDEN = "hidden"


def preparation(facts: NodeFacts, described: bool, path: Sequence[str] = ()) -> dict[str, Any]:
    """Its second line: the GPUs that it presents.

    `described`: the GPUs are not those of the machine that answers, so packages that need one only look importable.
    Without GPUs nothing is presented: the engine finds what it finds.
    """
    if not facts.gpu_names or facts.compute_capability is None or facts.gpu_memory_bytes is None:
        return {"gpus": None, "path": list(path)}
    gpus: dict[str, Any] = {
        "count": facts.gpu_count,
        "capability": facts.compute_capability,
        "memory_mib": facts.gpu_memory_bytes >> 20,
        "model": facts.gpu_names[0],
        "cuda": facts.cuda_version if described else None,
    }
    return {"gpus": gpus if described else {**gpus, "packages": []}, "path": list(path)}


class SglangPreflight:
    """Implements `core.preflight.Preflight`. `command`: the launch spec of an assignment."""

    def __init__(self, talk: Helper, prepared: Mapping[str, Any], command: Callable[[Assignment], LaunchSpec]) -> None:
        self._command = command
        self._ready: Mapping[str, Any] | None = None
        self._program = SentProgram(talk, {name: text_of(name) for name in _PROGRAM}, "SGLang's checks")
        self._program.say(prepared)

    @property
    def version(self) -> str:
        """Of the SGLang that answers. Waits until it is warm. Raises ProgramEndedError."""
        if self._ready is None:
            self._ready = self._program.heard(READY_S)
        if not self._ready.get("ready") or not self._ready.get("version"):
            raise ProgramEndedError(str(self._ready.get("error") or "SGLang's checks could not be imported"))
        return str(self._ready["version"])

    def ask(self, assignment: Assignment) -> PreflightVerdict:
        """See `core.preflight.Preflight`."""
        spec = self._command(assignment)
        arguments = spec.argv[spec.argv.index("--model-path") :]
        return self.judge(
            [word if isinstance(word, str) else _HIDDEN for word in arguments],
            {name: text for name, text in spec.env.items() if isinstance(text, str)},
        )

    def judge(self, argv: Sequence[str], env: Mapping[str, str]) -> PreflightVerdict:
        """The verdict on arguments as they follow the program. Raises ProgramEndedError."""
        assert self.version
        self._program.say({"argv": list(argv), "env": dict(env)})
        told = self._program.heard(ANSWER_S)
        try:
            return PreflightVerdict(
                ok=told["ok"],
                decided=told["decided"],
                stage=told["stage"],
                message=told["message"] or "",
                where=told["where"] or "",
                warnings=tuple(told.get("warnings") or ()),
                resolved=told.get("resolved") or {},
                took_ms=told.get("ms", 0.0),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ProgramEndedError(f"SGLang's checks answered something else: {str(told)[:200]!r}") from error

    def judge_written(self, argv: Sequence[str]) -> PreflightVerdict:
        """The verdict on a command as it is written; the study's model stands in where it names none."""
        words, own = list(argv), {}
        while words and (match := _VARIABLE.fullmatch(words[0])):
            own[match.group(1)] = match.group(2)
            words.pop(0)
        for program in (["-m", "sglang.launch_server"], ["serve"]):
            if words[1 : 1 + len(program)] == program:
                words = words[1 + len(program) :]
        spec = self._command({})
        at = spec.argv.index("--model-path")
        named = any(word.partition("=")[0] in ("--model-path", "--model") for word in words)
        model = [] if named else [word for word in spec.argv[at : at + 2] if isinstance(word, str)]
        env = {name: text for name, text in spec.env.items() if isinstance(text, str)}
        return self.judge([*model, *words], {**env, **own})

    def violation(self, assignment: Assignment, verdict: PreflightVerdict) -> Violation:
        """See `core.preflight.Preflight`. The flags are those that the message names, else all of the assignment."""
        return violation(assignment, verdict)

    def close(self) -> None:
        """End the helper process."""
        self._program.close()


def violation(assignment: Assignment, verdict: PreflightVerdict) -> Violation:
    """A refusal of the engine itself."""
    text = verdict.message.lower()
    words = {word.strip("-").replace("_", "-") for word in _WORD.findall(text)}
    named = tuple(flag for flag, value in assignment.items() if flag in words or _is_said(value, text))
    return Violation(
        rule=f"preflight.{verdict.stage or 'check'}",
        layer="preflight",
        flags=named or tuple(assignment),
        message=verdict.message or f"SGLang ends in {verdict.stage} without a message",
        source=f"sglang/{verdict.where}" if verdict.where else "SGLang's own parser on the node",
    )


def _is_said(value: Value, text: str) -> bool:
    """Whether a message speaks of a value: of a word, numbers stand in many."""
    return isinstance(value, str) and len(value) > 3 and value.lower() in text
