"""What a person does next after a crash that no change of a flag mends."""

from __future__ import annotations

from collections.abc import Iterable

from servetune.core.failure import Evidence, Repair, Verdict
from servetune.engines.sglang._advice_facts import facts_of, names_in
from servetune.engines.sglang._failure_table import Entry
from servetune.engines.sglang._failure_text import masked

#: Of a crash that no entry knows.
UNKNOWN = (
    "read the log around the deciding lines and report it with the command; of a study's trial "
    "`servetune diagnose STUDY --trial N` also knows what the tuner saw"
)


def advice_for(found: Entry, verdict: Verdict, repairs: Iterable[Repair], evidence: Iterable[Evidence]) -> str | None:
    """The first sentence of the advice whose facts the deciding lines have; None where the repairs say enough."""
    needed = verdict in (Verdict.STOP, Verdict.RETRY) or (verdict is Verdict.INFEASIBLE and not tuple(repairs))
    if not needed:
        return None
    facts = facts_of("\n".join(one.text for one in evidence))
    fitting = (one for one in found.advice if names_in(one) <= facts.keys())
    return next((masked(one.format_map(facts)) for one in fitting), None)
