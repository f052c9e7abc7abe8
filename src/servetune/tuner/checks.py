"""The engine's own checks on the node, asked before a launch: tens of milliseconds in place of a launch that cannot be.

They may only ever save a launch. Whatever breaks about them is said once, and the study goes on without them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from servetune.core.engine import Engine, Violation
from servetune.core.errors import ConnectionLostError, NodeUnreachableError, ProgramEndedError
from servetune.core.events import Listener, Note
from servetune.core.node import Node, NodeFacts
from servetune.core.preflight import OffersConversation, OffersPreflight, Preflight, PreflightVerdict
from servetune.core.space import Assignment
from servetune.core.trial import Outcome, TrialRecord, TrialState

#: So many questions in a row without a judgement: it is not the configurations, it is the node.
UNDECIDED = 3
#: Of one question: when the connection breaks under it, it is asked again of checks that are started anew.
ASKED = 3


class NodeChecks:
    """Starts the checks when they are first needed, or before: importing an engine takes seconds.

    `baseline` is launched whatever they say.
    """

    def __init__(self, node: Node, engine: Engine, facts: NodeFacts, baseline: Assignment, listener: Listener) -> None:
        self._node, self._engine, self._facts = node, engine, facts
        self._baseline, self._listener = dict(baseline), listener
        self._preflight: Preflight | None = None
        self._trusted = False
        self._undecided = 0
        self._over = facts.simulated or facts.engine_version is None

    def warm_up(self) -> None:
        """Start them without waiting, beside a launch that is not asked about. What goes wrong is told when one is."""
        if self._over or self._preflight is not None:
            return
        with contextlib.suppress(ProgramEndedError, NodeUnreachableError, ConnectionLostError):
            self._begin()

    def verdict(self, assignment: Assignment) -> PreflightVerdict | None:
        """What the engine says; None where it cannot be asked, or something else than its checks went wrong."""
        if self._over:
            return None
        try:
            verdict = self._asked(assignment)
        except (ProgramEndedError, NodeUnreachableError) as error:
            self._give_up(str(error))
            return None
        if verdict is None:
            return None
        if verdict.decided:
            self._undecided = 0
            return verdict
        self._undecided += 1
        if self._undecided >= UNDECIDED:
            self._give_up(f"{UNDECIDED} in a row could not be judged, the last one by {_said(verdict)}")
        return None

    def _asked(self, assignment: Assignment) -> PreflightVerdict | None:
        for _ in range(ASKED - 1):
            try:
                return self._asked_once(assignment)
            except ConnectionLostError:
                if self._preflight is not None:
                    self._preflight.close()
                    self._preflight, self._trusted = None, False
        return self._asked_once(assignment)

    def _asked_once(self, assignment: Assignment) -> PreflightVerdict | None:
        if not self._trusted and not self._start():
            return None
        assert self._preflight is not None
        return self._preflight.ask(assignment)

    def violation(self, assignment: Assignment, verdict: PreflightVerdict) -> Violation:
        """A refusal as a violation of layer `preflight`."""
        assert self._preflight is not None
        return self._preflight.violation(assignment, verdict)

    def close(self) -> None:
        """End the helper process; idempotent."""
        self._over = True
        if self._preflight is not None:
            self._preflight.close()

    def _begin(self) -> None:
        node, engine = self._node, self._engine
        if not isinstance(node, OffersConversation) or not isinstance(engine, OffersPreflight):
            self._over = True
        else:
            self._preflight = engine.preflight(node.converse, self._facts)

    def _start(self) -> bool:
        """Whether they can be trusted: a baseline that is launched and refused says that they see another machine."""
        if self._preflight is None:
            self._begin()
        if self._preflight is None:
            return False
        first = self._preflight.ask(self._baseline)
        if first.ok:
            self._trusted = True
            return True
        self._give_up(f"{'they refuse the baseline: ' if first.decided else ''}{_said(first)}")
        return False

    def _give_up(self, why: str) -> None:
        self.close()
        self._listener.on(Note(text=f"the engine's own checks are not asked before launches: {why}", warning=True))


def _said(verdict: PreflightVerdict) -> str:
    return f"{verdict.message or 'no message'} ({verdict.where or verdict.stage})"


def rejection(violations: Sequence[Violation]) -> Outcome:
    """The outcome of what is known not to work: nothing is launched."""
    message = "; ".join(violation.message for violation in violations)
    return Outcome(state=TrialState.REJECTED, violations=tuple(violations), message=message)


def stored(verdict: PreflightVerdict) -> dict[str, Any]:
    """A verdict as it is kept with its trial: exact message, and the resolved arguments that have a value."""
    told = verdict.model_dump(mode="json")
    return {**told, "resolved": {name: value for name, value in told["resolved"].items() if value is not None}}


def refused_on_node(records: Sequence[TrialRecord]) -> Iterator[Assignment]:
    """Assignments that the engine's own checks refused, in this sitting of the tuner or an earlier one."""
    for record in records:
        if any(violation.layer == "preflight" for violation in record.rejected):
            yield record.assignment
