"""Options that did nothing: by the log, by what the server says of its own arguments, and by what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from servetune.core.benchmark import Measurement
from servetune.core.space import Assignment, SearchSpace, Value, flags_of, same_value
from servetune.core.trial import RunRecord, TrialRecord

#: Key of a run's log facts under which the tuner keeps what the server said: flag → value.
SERVED = "served_arguments"
#: Values that leave the choice to the engine: whatever it then says is in effect.
LEFT_TO_THE_ENGINE = ("auto", "none", "None")
#: Two numbers that differ by less are one, written differently.
ROUNDING = 1e-6
#: Of a level's throughput; closer than this nothing is called an effect.
NO_DIFFERENCE = 0.02


def flags_to_watch(space: SearchSpace, assignment: Assignment) -> frozenset[str]:
    """Every flag that some configuration of the study sets; environment variables have no argument."""
    sampled = {flag for parameter in space.parameters for flag in flags_of(parameter)}
    return frozenset(flag for flag in {*sampled, *assignment} if not flag.startswith("env."))


def served_arguments(info: Any, flags: Iterable[str]) -> dict[str, Value]:
    """Of a server's own arguments (`/server_info`), those of these flags that are plain values.

    An argument that the server leaves at null may have a value all the same (SGLang 0.5.23), so it says nothing.
    """
    told = info if isinstance(info, dict) else {}
    found = {flag: told.get(flag.replace("-", "_")) for flag in sorted(flags)}
    return {flag: value for flag, value in found.items() if isinstance(value, bool | int | float | str)}


def in_effect(log_facts: Mapping[str, Any], flags: Iterable[str]) -> dict[str, Value]:
    """Of the numbers that the log says the server works with, those of these flags: surer than its arguments."""
    told = log_facts.get("in_effect", {})
    return {flag: told[flag] for flag in sorted(flags) if flag in told}


def sentences(assignment: Assignment, served: Mapping[str, Value], log_warnings: Sequence[str]) -> tuple[str, ...]:
    """The log's own warnings, and one more per changed flag of which the log said nothing."""
    said = [
        f"{flag}={assignment[flag]} is {_verb(assignment[flag])}: the server itself says {value}"
        for flag, value in _changed(assignment, served).items()
        if not any(f"{flag} is {verb}" in warning for warning in log_warnings for verb in ("not in effect", "changed"))
    ]
    return (*log_warnings, *said)


def _verb(asked: Value) -> str:
    """A number is often adapted (divided among ranks), a switch or a name is taken or not."""
    return "changed" if _is_number(asked) else "not in effect"


def _changed(assignment: Assignment, served: Mapping[str, Value]) -> dict[str, Value]:
    return {
        flag: served[flag]
        for flag, value in assignment.items()
        if flag in served and value not in LEFT_TO_THE_ENGINE and not _same(value, served[flag])
    }


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(asked: Value, told: Value) -> bool:
    if _is_number(asked) and _is_number(told):
        return abs(float(asked) - float(told)) <= ROUNDING * max(1.0, abs(float(asked)))
    return same_value(asked, told) or str(asked) == str(told)


def not_in_effect(record: TrialRecord) -> frozenset[str]:
    """Flags of a trial that its finished launches did not honour, by their logs and by the servers themselves."""
    found: set[str] = set()
    for run in _finished(record):
        said = run.log_facts.get("not_in_effect", ())
        found |= {entry["flag"] for entry in said if "flag" in entry and entry.get("why") != "adapted"}
        changed = _changed(record.assignment, run.log_facts.get(SERVED, {}))
        found |= {flag for flag in changed if not _is_number(record.assignment[flag])}
    return frozenset(found & record.assignment.keys())


def is_the_baseline(record: TrialRecord, baseline: TrialRecord) -> bool:
    """Whether nothing that a trial changes is in effect: it ran as the baseline does, and cannot be ahead of it."""
    changed = changes(record.assignment, baseline.assignment)
    idle = not_in_effect(record) - not_in_effect(baseline)
    return bool(changed) and all(flag in idle or _served_alike(flag, record, baseline) for flag in changed)


def _served_alike(flag: str, record: TrialRecord, baseline: TrialRecord) -> bool:
    """Whether both servers said that they use the same value."""
    ours, theirs = ([run.log_facts.get(SERVED, {}) for run in _finished(trial)] for trial in (record, baseline))
    told = [served[flag] for served in (*ours, *theirs) if flag in served]
    known = any(flag in served for served in ours) and any(flag in served for served in theirs)
    return known and all(_same(value, told[0]) for value in told)


def no_difference(record: TrialRecord, baseline: TrialRecord) -> bool:
    """Whether every level of the search's launch is within `NO_DIFFERENCE` of the baseline's, intervals included.

    Two one-sided tests at 5 % per level (D. Schuirmann, 1987). One launch each: what differs between launches is not
    in the intervals, so this says that nothing was seen, and the confirmation decides.
    """
    ours, theirs = ({m.concurrency: m for m in trial.measurements} for trial in (record, baseline))
    shared = [(ours[level], theirs[level]) for level in ours if level in theirs]
    return bool(shared) and all(_alike(a, b) for a, b in shared)


def _alike(a: Measurement, b: Measurement) -> bool:
    if min(a.output_tokens_per_s, b.output_tokens_per_s) <= 0:
        return False
    difference = math.log(a.output_tokens_per_s / b.output_tokens_per_s)
    sd = math.hypot(*((m.high - m.low) / (2 * 1.96 * m.output_tokens_per_s) for m in (a, b)))
    return abs(difference) + 1.645 * sd <= math.log1p(NO_DIFFERENCE)


def changes(ours: Assignment, theirs: Assignment) -> frozenset[str]:
    """Flags that one sets otherwise than the other, or leaves out."""
    return frozenset(flag for flag in {*ours, *theirs} if ours.get(flag) != theirs.get(flag))


def _finished(record: TrialRecord) -> list[RunRecord]:
    return [run for run in record.runs if run.finished_at is not None]
