"""The header of an exported command: where it comes from, and what was measured of it against the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import fmean, geometric_mean

from servetune import __version__
from servetune.core.benchmark import Measurement, Percentiles
from servetune.core.node import NodeFacts
from servetune.core.quantities import counted
from servetune.core.study import StoredStudy, StudyRunState, StudySpec
from servetune.core.trial import RunPurpose, RunRecord, TrialRecord
from servetune.report import SIMULATED, sets, verdict
from servetune.tuner.confirm import baselines, compared, valued
from servetune.tuner.doubts import MARK, NOT_VALID, not_valid, warnings

#: In the place of a latency of zero.
UNMEASURABLE = "–"
NOT_MEASURABLE = "not measurable: the tokens of most answers reached the client all at once"
#: So many warnings stand in a header.
WARNINGS_SHOWN = 8


def provenance(
    stored: StoredStudy, records: Sequence[TrialRecord], record: TrialRecord, run: RunRecord
) -> tuple[str, ...]:
    """Header of an export: study, trial, node, engine version, date, and the measured table against the baseline."""
    base = next(iter(baselines(records)), None)
    facts = run.facts
    lines = [f"WARNING: this command failed: {failed}"] if (failed := how_it_failed(record)) else []
    lines += [f"servetune {__version__}: study {stored.name}, trial {record.number}, {sets(stored, record)}"]
    lines += [SIMULATED] if facts.simulated else []
    lines += [] if stored.state is StudyRunState.FINISHED else [f"the study is {_state(stored)}"]
    lines += [
        f"node: {_node(facts)}",
        f"engine: {facts.engine_name or stored.spec.engine.name} {facts.engine_version or '(version unknown)'}, "
        f"model {stored.spec.engine.model}",
        f"measured {run.started_at}, exported {datetime.now(UTC).isoformat(timespec='seconds')}",
        verdict(stored, records, record, base) if record.value is not None else f"trial is {record.state.value}",
        "",
        *_table(record, base, stored.spec),
    ]
    return tuple(lines)


def _state(stored: StoredStudy) -> str:
    return f"{stored.state.value} ({stored.reason})" if stored.reason else stored.state.value


def how_it_failed(record: TrialRecord) -> str:
    """`CLASS in PHASE: message` on one line; empty when the last launch did not fail."""
    failure = record.failure
    return "" if failure is None else f"{failure.slug} in {failure.phase.value}: {' '.join(failure.message.split())}"


def _node(facts: NodeFacts) -> str:
    gpus = f"{facts.gpu_count} x {facts.gpu_names[0]}" if facts.gpu_names else "no GPU"
    parts = [f"{facts.node} {facts.host}".strip(), gpus, facts.interconnect, _driver(facts)]
    return ", ".join(part for part in parts if part)


def _driver(facts: NodeFacts) -> str:
    return f"driver {facts.driver_version}" if facts.driver_version else ""


def _searched(record: TrialRecord) -> list[RunRecord]:
    return [run for run in record.runs if run.purpose is RunPurpose.SEARCH and run.finished_at][-1:]


def _table(record: TrialRecord, baseline: TrialRecord | None, spec: StudySpec) -> list[str]:
    """Fixed-width lines: concurrency, output tokens/s, baseline, gain, TTFT and TPOT medians; what to doubt of them.

    Of a confirmed trial: means over the launches that its verdict counts, which are the fresh ones and the baseline's
    in the same turns.
    """
    ours: Sequence[RunRecord] = _searched(record)
    theirs: Sequence[RunRecord] = [] if baseline is None else _searched(baseline)
    lines = []
    if baseline is not None and any(run.purpose is RunPurpose.CONFIRM for run in valued(record, spec)):
        fresh, turns = compared(record, baseline, spec)
        ours, theirs = (fresh, turns.beside) if record is not baseline else (valued(baseline, spec),) * 2
        lines.append(f"means over {_launches(ours)}, of the baseline over {_launches(theirs)}")
    told, base = _by_level(ours), _by_level(theirs)
    lines.append("concurrency  output tokens/s      baseline     gain  TTFT p50 ms  TPOT p50 ms")
    lines += [_row(level, measured, base.get(level, [])) for level, measured in told.items()]
    if any(UNMEASURABLE in line for line in lines):
        lines.append(f"{UNMEASURABLE}: {NOT_MEASURABLE}")
    shown = [record] if baseline is None or record is baseline else [record, baseline]
    return lines + _doubts(shown, [*ours, *theirs], spec)


def _row(level: int, measured: Sequence[Measurement], others: Sequence[Measurement]) -> str:
    rate, other = _rate(measured), _rate(others)
    gain = "" if other is None or rate is None else f"{100 * (rate / other - 1):+.1f} %"
    rates = [_marked(rate, measured), _marked(other, others)]
    ttft, tpot = _median_ms([m.ttft_s for m in measured], 0), _median_ms([m.tpot_s for m in measured], 1)
    return f"{level:>11}  {rates[0]:>15}  {rates[1]:>12}  {gain:>7}  {ttft:>11}  {tpot:>11}"


def _marked(rate: float | None, measured: Sequence[Measurement]) -> str:
    return "" if rate is None else f"{rate:.1f}" + ("" if all(m.valid for m in measured) else MARK)


def _doubts(shown: Sequence[TrialRecord], runs: Sequence[RunRecord], spec: StudySpec) -> list[str]:
    """What the mark means, and the warnings of the measurements that the table is made of."""
    attempts = {record.number: {r.attempt for r in record.runs if r in runs} for record in shown}
    told = [one.said() for one in warnings(shown, spec) if one.attempt in attempts[one.trial]]
    lines = [NOT_VALID] if not_valid(runs) else []
    lines += [f"warning: {text}" for text in told[:WARNINGS_SHOWN]]
    if (more := len(told) - WARNINGS_SHOWN) > 0:
        lines.append(f"… and {counted(more, 'more warning')}: `servetune report {spec.study} --json`")
    return lines


def _launches(runs: Sequence[RunRecord]) -> str:
    kind = "fresh launch" if all(run.purpose is RunPurpose.CONFIRM for run in runs) else "launch"
    return counted(len(runs), kind)


def _by_level(runs: Sequence[RunRecord]) -> dict[int, list[Measurement]]:
    found: dict[int, list[Measurement]] = {}
    for run in runs:
        for measurement in run.measurements:
            found.setdefault(measurement.concurrency, []).append(measurement)
    return found


def _rate(measured: Sequence[Measurement]) -> float | None:
    """Geometric mean over launches, as the lead is computed; None where nothing flowed."""
    rates = [m.output_tokens_per_s for m in measured]
    return geometric_mean(rates) if rates and min(rates) > 0 else None


def _median_ms(percentiles: Sequence[Percentiles | None], digits: int) -> str:
    """Mean of the medians in ms; a median of zero says that the client could not measure it."""
    known = [1000 * p.p50 for p in percentiles if p is not None]
    if not known:
        return ""
    return f"{fmean(known):.{digits}f}" if min(known) > 0 else UNMEASURABLE
