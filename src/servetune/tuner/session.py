"""One sitting of a tuner on a study: leases, node, engine, load generator, loop; and the state it leaves behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from servetune.core.errors import NodeError, ServetuneError, SpecError
from servetune.core.events import Event, Listener, Note, Step, StudyOpened
from servetune.core.node import Adopting, EnvRef, HeldNode, Node, SharedNode
from servetune.core.study import StudyRunState, StudySpec
from servetune.storage import Lease, MemoryLease, Store
from servetune.tuner.adoption import unfinished
from servetune.tuner.checks import NodeChecks
from servetune.tuner.installation import check_installation, measured_facts
from servetune.tuner.launches import Launches
from servetune.tuner.loop import MakeSampler, Tuner
from servetune.tuner.opening import known_facts, open_engine, open_node, plugin, read_installation
from servetune.tuner.probe import Probe, probe_http
from servetune.tuner.stopping import Interrupted, StopRequest
from servetune.tuner.trial_runner import TrialRunner

#: A lease is renewed every third of this; another host may take a study over once it has gone unrenewed this long.
LEASE_TTL_S = 60.0


class _Guarded:
    """Passes events on, and stops the tuner before its next step when a lease was lost meanwhile."""

    def __init__(self, listener: Listener, leases: Sequence[Lease | MemoryLease | HeldNode], node: Node) -> None:
        self._listener, self._leases = listener, leases
        self._notes: Callable[[], Sequence[str]] = getattr(node, "take_notes", tuple)

    def on(self, event: Event) -> None:
        for text in self._notes():
            self._listener.on(Note(text=text, warning=True))
        if isinstance(event, Step):
            for lease in self._leases:
                lease.check()
        self._listener.on(event)


def study_dir(spec: StudySpec) -> Path:
    """Where a study's logs lie: beside its SQLite database, else `studies/` of the working directory."""
    if spec.storage.startswith("sqlite:///"):
        return Path(spec.storage.removeprefix("sqlite:///")).resolve().parent / spec.study
    return Path("studies").resolve() / spec.study


def request_headers(spec: StudySpec, environ: Mapping[str, str]) -> dict[str, str]:
    """What every request to the server carries: the API key, when the study has one. Never stored."""
    reference = spec.secret_flags.get("api-key")
    return {} if reference is None else {"Authorization": f"Bearer {secret(reference, environ)}"}


def secret(reference: EnvRef, environ: Mapping[str, str]) -> str:
    """Value of a secret. Raises SpecError naming the variable when it is not set."""
    value = environ.get(reference.from_env)
    if not value:
        raise SpecError(f"the environment variable {reference.from_env} is not set; the study file refers to it")
    return value


def run_study(
    spec: StudySpec,
    store: Store,
    listener: Listener,
    stop: StopRequest,
    probe: Probe = probe_http,
    open_node: Callable[[StudySpec], Node] = open_node,
    make_sampler: MakeSampler | None = None,
) -> str:
    """Carry the study on to its end. Returns why it ended.

    Raises Interrupted when asked to stop (state `stopped`), StudyBusyError or NodeBusyError when another tuner holds
    the study or its node (state untouched), any other ServetuneError with the state `failed`.
    """
    with ExitStack() as held:
        study_lease = store.acquire(f"study:{spec.study}", LEASE_TTL_S)
        held.enter_context(study_lease)
        node = open_node(spec)
        if hasattr(node, "close"):
            held.callback(node.close)
        leases = [study_lease, *_node_leases(spec, store, node, held)]
        guarded = _Guarded(listener, leases, node)
        store.set_state(spec.study, StudyRunState.RUNNING)
        store.revise(spec)  # a report of another process goes by what this sitting goes by
        state: StudyRunState | None = StudyRunState.FAILED
        reason = "the tuner crashed"
        try:
            reason = _tuner(spec, store, node, guarded, stop, probe, make_sampler, held).run()
            state = StudyRunState.FINISHED
            return reason
        except (Interrupted, KeyboardInterrupt):
            state, reason = StudyRunState.STOPPED, "stopped on request"
            raise
        except ServetuneError as error:
            reason = str(error)
            if any(getattr(lease, "lost", False) for lease in leases):
                state = None  # it is the other tuner's to write
            raise
        finally:
            if state is not None:
                store.set_state(spec.study, state, reason)
            if state is not None:
                with suppress(NodeError):  # a node that cannot be reached is tidied up on resume
                    _reclaim(spec, node, guarded)


def _node_leases(
    spec: StudySpec, store: Store, node: Node, held: ExitStack
) -> Sequence[Lease | MemoryLease | HeldNode]:
    """Of the database, and of the node itself where tuners may meet that share no database."""
    shared = node if isinstance(node, SharedNode) else None
    leases: list[Lease | MemoryLease | HeldNode] = []
    for name in [node.identity()] if shared is None else shared.identities():
        lease = store.acquire(f"node:{name}", LEASE_TTL_S)
        held.enter_context(lease)
        leases.append(lease)
    if shared is not None:
        on_node = shared.hold(spec.study)
        held.enter_context(on_node)
        leases.append(on_node)
    return leases


def _reclaim(spec: StudySpec, node: Node, listener: Listener) -> None:
    """End what an earlier sitting left on the node."""
    for sentence in node.reclaim(spec.study):
        listener.on(Note(text=sentence, warning=True))


def _tuner(
    spec: StudySpec,
    store: Store,
    node: Node,
    listener: Listener,
    stop: StopRequest,
    probe: Probe,
    make_sampler: MakeSampler | None,
    held: ExitStack,
) -> Tuner:
    """Put the parts together; what an earlier sitting left on the node is ended first."""
    if not (isinstance(node, Adopting) and unfinished(store, spec.study)):
        _reclaim(spec, node, listener)
    facts = known_facts(spec, node)
    measured = measured_facts(store.trials(spec.study))
    check_installation(spec, measured, facts.model_dump())
    engine = open_engine(spec)
    for note in read_installation(spec, node, engine, facts):
        listener.on(Note(text=note))
    module, settings = plugin("benchmarks", spec.load_generator.name, spec.load_generator.settings)
    headers = request_headers(spec, os.environ)
    generator = module.create(settings)
    runner = TrialRunner(
        spec, node, engine, generator, probe, listener, stop, headers, facts.simulated, measured or facts
    )
    launches = Launches(spec, store, node, engine, runner, facts, study_dir(spec), listener)
    spent_s = sum(store.ledger(spec.study).values())
    listener.on(StudyOpened(spec=spec, facts=facts, node_s=spent_s, records=store.trials(spec.study)))
    checks = NodeChecks(node, engine, facts, {**spec.space.fixed, **spec.baseline}, listener)
    held.callback(checks.close)
    return Tuner(spec, store, engine, facts, launches, listener, make_sampler, checks)
