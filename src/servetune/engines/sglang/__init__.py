"""SGLang: what its installed version accepts, its command line, its logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from servetune.core.engine import EngineChoice, LogReader, Violation
from servetune.core.errors import SpecError
from servetune.core.judgement import Judgement
from servetune.core.node import EnvRef, LaunchSpec, NodeFacts
from servetune.core.preflight import Converse
from servetune.core.space import Assignment, Frozen, SearchSpace, Value, same_value
from servetune.engines.sglang import installation, rules
from servetune.engines.sglang._judging import judged, version_notes
from servetune.engines.sglang._memory_layouts import layouts
from servetune.engines.sglang._model_files import model_config
from servetune.engines.sglang._resolve import resolved
from servetune.engines.sglang._sent_program import argv_of
from servetune.engines.sglang.capabilities import (
    RESERVED,
    Capabilities,
    capabilities_of,
    read_capabilities,
    translate,
    unchecked,
    violation_of,
    violations,
)
from servetune.engines.sglang.flags import launch_spec
from servetune.engines.sglang.logs import SglangLogReader
from servetune.engines.sglang.memory import Calibration, MemoryForecast, calibrate, forecast, memory_violations
from servetune.engines.sglang.model_config import model_facts
from servetune.engines.sglang.preflight import SglangPreflight, preparation

FRACTION = "mem-fraction-static"


class Settings(Frozen):
    """SGLang takes no keys beyond those that every engine has."""


def create(choice: EngineChoice, secret_flags: Mapping[str, EnvRef]) -> SglangEngine:
    """SGLang for one study. The model's config.json is read where the model lies on this machine."""
    return SglangEngine(choice, secret_flags, model_config(choice.model))


class SglangEngine:
    """Implements `core.engine.Engine`. `model_config`: the model's config.json, where it is known."""

    def __init__(
        self,
        choice: EngineChoice,
        secret_flags: Mapping[str, EnvRef],
        model_config: Mapping[str, Any] | None = None,
    ) -> None:
        self._choice = choice
        self._secrets = dict(secret_flags)
        self._model_config = model_config
        self._known: dict[tuple[str, bool], Capabilities] = {}
        self._calibration = Calibration()

    def capabilities(self, facts: NodeFacts) -> Capabilities | None:
        """Of the version that the study or the node names; None when neither does.

        Those that `read_installation` found; else from the source of the package, where the study's Python lies on
        this machine and holds that very version; else from the shipped tables.
        """
        version = self._version(facts)
        if version is None:
            return None
        key = (version, facts.simulated)
        if key not in self._known:
            self._known[key] = self._installed(version, facts) or capabilities_of(version)
        return self._known[key]

    def read_installation(self, converse: Converse, facts: NodeFacts, flags: Iterable[str]) -> Sequence[str]:
        """See `core.preflight.ReadsInstallation`."""
        version = self._version(facts)
        if facts.simulated or version is None:
            return ()
        python, env = self._choice.python, self._choice.env
        found, note = installation.read_installation(lambda argv: converse(argv, env), python, version, flags)
        if found is not None:
            self._known[version, False] = found
        return (note,) if note else ()

    def resolve_space(self, space: SearchSpace, facts: NodeFacts) -> tuple[SearchSpace, Sequence[str]]:
        """The space in the spelling of the installed version, and one sentence per thing translated or dropped."""
        capabilities = self.capabilities(facts)
        if capabilities is None:
            return space, ("the engine's version is not known: flags are launched as they are written",)

        def judge(flags: Mapping[str, Value]) -> Sequence[Violation]:
            return self._accepted(flags, facts, capabilities)

        return resolved(space, capabilities, judge)

    def translated(self, assignment: Assignment, facts: NodeFacts) -> dict[str, Value]:
        """The assignment in the spelling of the installed version, where an exact equivalent exists."""
        capabilities = self.capabilities(facts)
        return dict(assignment) if capabilities is None else translate(assignment, capabilities)[0]

    def check(self, assignment: Assignment, facts: NodeFacts) -> Sequence[Violation]:
        """Every reason why it cannot work that is known without the node."""
        capabilities = self.capabilities(facts)
        if capabilities is None:
            return ()
        flags, _ = translate(assignment, capabilities)
        found = self._accepted(flags, facts, capabilities)
        if facts.engine_rules and not found:
            told = self._with_environment(flags)
            found += rules.violations(told, facts, capabilities.version, self._config(facts))
            if not found:
                found += memory_violations(self._forecast(told, facts, capabilities), flags, named_only=False)
        return found

    def check_model_config(self, config: Mapping[str, Any]) -> None:
        """Raises SpecError naming what in a model's config.json is not understood."""
        model_facts(config)

    def judge(self, argv: Sequence[str], facts: NodeFacts) -> Judgement:
        """See `core.judgement.JudgesCommands`."""
        capabilities = self.capabilities(facts)
        if capabilities is None:
            raise SpecError("SGLang's version is not known: name it with --engine-version, or in the node facts")
        env = {name: value for name, value in self._choice.env.items() if isinstance(value, str)}
        return judged(argv, env, facts, capabilities, self._config(facts), self._calibration)

    def version_notes(self, facts: NodeFacts) -> Sequence[str]:
        """That another release answers for the node's version, in a sentence; empty where there is nothing to say."""
        capabilities = self.capabilities(facts)
        return () if capabilities is None else version_notes(capabilities)

    def unchecked(self, flags: Iterable[str], facts: NodeFacts) -> Sequence[str]:
        """What is to be said of flags while nobody knows the version; empty where it is known."""
        return tuple(unchecked(flags)) if self.capabilities(facts) is None else ()

    def preflight(self, converse: Converse, facts: NodeFacts, described: bool = False) -> SglangPreflight:
        """See `core.preflight.OffersPreflight`. `described`: the facts are not those of the machine that answers."""
        env = self._choice.env
        talk = converse(argv_of(self._choice.python), env)
        return SglangPreflight(talk, preparation(facts, described), lambda flags: self.launch(flags, facts, 30000))

    def memory(self, assignment: Assignment, facts: NodeFacts) -> MemoryForecast | None:
        """Memory of one GPU under an assignment; None where GPU, model or version are not known, or no rule holds."""
        capabilities = self.capabilities(facts)
        if capabilities is None or not facts.engine_rules:
            return None
        return self._forecast(self._with_environment(translate(assignment, capabilities)[0]), facts, capabilities)

    def layouts(self, assignments: Iterable[Assignment], facts: NodeFacts) -> list[dict[str, Any]]:
        """The interval of memory fractions of each parallel layout among `assignments`; empty where none is known."""
        forecasts = [(assignment, self.memory(assignment, facts)) for assignment in assignments]
        return layouts((assignment, found) for assignment, found in forecasts if found is not None)

    def bounds(self, assignment: Assignment, facts: NodeFacts) -> Mapping[str, tuple[float, float]]:
        """See `core.engine.LearnsFromLogs`: the memory fractions that can work beside the other flags."""
        found = self.memory({flag: value for flag, value in assignment.items() if flag != FRACTION}, facts)
        if found is None or found.fraction_needed > found.fraction_high:
            return {}
        return {FRACTION: (found.fraction_needed, found.fraction_high)}

    def learn(self, assignment: Assignment, log_facts: Mapping[str, Any]) -> None:
        """See `core.engine.LearnsFromLogs`: memory before and after loading, and of graphs, for a class of layouts."""
        self._calibration = calibrate(self._calibration, assignment, log_facts)

    def _forecast(self, flags: Assignment, facts: NodeFacts, capabilities: Capabilities) -> MemoryForecast | None:
        return forecast(flags, facts, capabilities.version, self._config(facts), self._calibration)

    def _with_environment(self, flags: Assignment) -> Assignment:
        """Variables of the study's `engine.env` hold for every launch."""
        env = {f"env.{name}": value for name, value in self._choice.env.items() if isinstance(value, str)}
        return {**env, **flags} if env else flags

    def defaults(self, facts: NodeFacts) -> Assignment:
        """Defaults of valued flags that the version declares, and those that the node knows."""
        capabilities = self.capabilities(facts)
        flags = capabilities.flags.values() if capabilities is not None else ()
        declared = {flag.name: flag.default for flag in flags if flag.valued and flag.default is not None}
        return {**declared, **facts.flag_defaults}

    def effective(self, assignment: Assignment, facts: NodeFacts) -> Assignment:
        """The key for duplicates: defaults, false switches and variables without effect dropped, overrides applied."""
        capabilities = self.capabilities(facts)
        if capabilities is None:
            return dict(sorted(assignment.items()))
        flags, _ = translate(assignment, capabilities)
        flags = {name: value for name, value in flags.items() if not _is_idle(name, capabilities)}
        if facts.engine_rules:
            told = self._with_environment(flags)
            made = rules.effective(told, facts, capabilities.version, self._config(facts)).assignment
            flags = {name: value for name, value in made.items() if name in flags or name not in told}
        defaults = self.defaults(facts)
        return {name: flags[name] for name in sorted(flags) if not _is_default(name, flags[name], defaults)}

    def launch(self, assignment: Assignment, facts: NodeFacts, port: int) -> LaunchSpec:
        """The command. Pure: same input, same argv."""
        choice, flags = self._choice, self.translated(assignment, facts)
        secrets, env = self._secrets, choice.env
        return launch_spec(flags, secrets, env, choice.python, choice.model, port, self.capabilities(facts))

    def log_reader(self, assignment: Assignment) -> LogReader:
        """A fresh reader for the log of a server started with `assignment`."""
        return SglangLogReader(assignment)

    def _version(self, facts: NodeFacts) -> str | None:
        named = facts.engine_version if facts.engine_name in (None, "sglang") else None
        return self._choice.version or named

    def _installed(self, version: str, facts: NodeFacts) -> Capabilities | None:
        """From the source of the package itself; None when it is not here, another version, or of an unknown shape."""
        if facts.simulated:
            return None
        for site_dir in (
            Path(self._choice.python).expanduser().absolute().parent.parent.glob("lib/python3*/site-packages")
        ):
            try:
                read = read_capabilities(site_dir)
            except (OSError, SyntaxError, KeyError):
                continue
            if read.version == version:
                return read
        return None

    def _accepted(self, flags: Assignment, facts: NodeFacts, capabilities: Capabilities) -> list[Violation]:
        """Layer 1. Where the engine's rules do not hold the node decides about values; only spelling is judged."""
        found = [_reserved(name, capabilities) for name in flags if name in RESERVED]
        found += violations(flags, capabilities)
        return [violation for violation in found if facts.engine_rules or violation.rule != "unknown-choice"]

    def _config(self, facts: NodeFacts) -> Mapping[str, Any] | None:
        return facts.config_json or self._model_config or None


def _reserved(name: str, capabilities: Capabilities) -> Violation:
    way = "engine.model in the study file" if name == "model-path" else "nothing: servetune chooses it"
    return violation_of("reserved-flag", name, f"--{name} is set by servetune; write {way}", capabilities)


def _is_default(name: str, value: Value, defaults: Assignment) -> bool:
    """A switch that is false is left out; a variable has no default but one that the node names."""
    return same_value(value, defaults.get(name, None if name.startswith("env.") else False))


def _is_idle(name: str, capabilities: Capabilities) -> bool:
    return name.startswith("env.") and capabilities.has_no_effect(name.removeprefix("env."))
