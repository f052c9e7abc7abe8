"""What is validated against: the engine of a study or of a description, and the facts of a node."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from servetune import plugins
from servetune.core.engine import Engine, EngineChoice
from servetune.core.errors import FlagProblem, FlagsError, InterpreterError, SpecError, UsageError
from servetune.core.node import Node, NodeFacts
from servetune.core.space import SearchSpace
from servetune.core.study import StudySpec
from servetune.settings import check_version, load_model_config, load_node_facts, placed

#: How a study is checked on a machine that is not its node.
AWAY = "; away from its node give --node-facts FILE --model-config FILE --engine-version VERSION"


@dataclass(frozen=True)
class Setting:
    """An engine, the facts that stand for a node, and the study where there is one."""

    engine: Engine
    facts: NodeFacts
    spec: StudySpec | None = None
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class StandIns:
    """Files and words that stand in for a node, a model and a version."""

    node_facts: Path | None = None
    model_config: Path | None = None
    engine_version: str | None = None


def setting(spec: StudySpec | None, given: StandIns) -> Setting:
    """Read what is given; what stands in for something wins over the study. Raises SpecError."""
    node_facts, model_config, engine_version = given.node_facts, given.model_config, given.engine_version
    facts = None if node_facts is None else load_node_facts(node_facts)
    config = None if model_config is None else load_model_config(model_config)
    version = None if engine_version is None else check_version(engine_version, "--engine-version")
    if spec is None and (facts is None or config is None):
        missing = "--node-facts" if facts is None else "--model-config"
        raise UsageError(f"without a STUDY give both --node-facts and --model-config; {missing} is missing")
    warnings: Sequence[str] = ()
    with ExitStack() as held:
        node = None
        if facts is None:
            assert spec is not None
            node, facts, warnings = _asked(spec, held)
        update: dict[str, object] = {} if config is None else {"config_json": config}
        choice = _choice(spec, facts, version)
        if choice.version is not None:
            update |= {"engine_version": choice.version, "engine_name": choice.name}
        facts = facts.model_copy(update=update)
        secrets = {} if spec is None else spec.secret_flags
        engine: Engine = plugins.load("engines", choice.name).create(choice, secrets)
        notes: Sequence[str] = ()
        if node is not None and spec is not None:
            from servetune.tuner.opening import read_installation

            notes = read_installation(spec, node, engine, facts)
    if config is not None and hasattr(engine, "check_model_config"):
        try:
            engine.check_model_config(config)
        except SpecError as error:
            raise UsageError(f"{model_config}: {error}") from error
    return Setting(engine, facts, spec, notes, warnings)


def _asked(spec: StudySpec, held: ExitStack) -> tuple[Node | None, NodeFacts, Sequence[str]]:
    """The study's node and its facts; no node to ask further, and a warning, where the engine's Python is not there."""
    from servetune.tuner.opening import at_node, known_facts

    try:
        node = held.enter_context(at_node(spec))
        return node, known_facts(spec, node), ()
    except InterpreterError as error:
        without = {**spec.node.settings, "engine_python": None}
        spec = spec.model_copy(update={"node": spec.node.model_copy(update={"settings": without})})
        facts = known_facts(spec, held.enter_context(at_node(spec)))
        return None, facts, (f"{error}: the file is checked without it{AWAY}",)


def check_version_known(against: Setting) -> None:
    """Raises UsageError when nobody names the engine's version."""
    if against.facts.engine_version is None:
        raise UsageError(
            "the engine's version is not known: name it with --engine-version, in the node facts "
            "(engine: {version: 0.5.9}) or in the study (engine: {version: …})"
        )


def version_notes(against: Setting) -> Sequence[str]:
    """What the engine has to say of the version it is asked about, such as that another release answers for it."""
    notes = getattr(against.engine, "version_notes", None)
    found: Sequence[str] = () if notes is None else notes(against.facts)
    return (*found, *against.notes)


def _choice(spec: StudySpec | None, facts: NodeFacts, version: str | None) -> EngineChoice:
    """--engine-version before the version of described facts, and that before the study's."""
    choice = EngineChoice(name=facts.engine_name or "sglang", model="") if spec is None else spec.engine
    described = facts.engine_version if facts.node == "described" else None
    return choice.model_copy(update={"version": version or described or choice.version})


def fitted(spec: StudySpec, engine: Engine, facts: NodeFacts) -> tuple[SearchSpace, Sequence[str]]:
    """The study's space as the engine's version can run it, and what was translated or dropped.

    Raises SpecError naming section, file and line of every flag that the version does not take, of the baseline, too.
    """
    try:
        found = engine.resolve_space(spec.space, facts)
    except FlagsError as error:
        raise placed(_with_baseline(error, spec, engine, facts), spec) from error
    if wrong := _wrong_baseline(spec, engine, facts):
        raise placed(FlagsError(f"the baseline does not fit {spec.engine.name}:", wrong), spec)
    return found


def _with_baseline(error: FlagsError, spec: StudySpec, engine: Engine, facts: NodeFacts) -> FlagsError:
    """What is wrong with the space, then with the baseline; a fixed flag is told once."""
    told = [problem._replace(section="baseline") for problem in error.problems if problem.flag not in spec.baseline]
    wrong = [problem for problem in _wrong_baseline(spec, engine, facts) if problem not in told]
    return FlagsError(error.head, [*error.problems, *wrong])


def _wrong_baseline(spec: StudySpec, engine: Engine, facts: NodeFacts) -> list[FlagProblem]:
    """Of the baseline's flags beside the fixed ones."""
    flags = {**spec.space.fixed, **spec.baseline}
    try:
        engine.resolve_space(spec.space.model_copy(update={"parameters": (), "fixed": flags}), facts)
    except FlagsError as error:
        return [problem._replace(section="baseline") for problem in error.problems]
    return []
