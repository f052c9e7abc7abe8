"""The header of an exported command: where it comes from, and what was measured of it against the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import fmean, geometric_mean

from servetune import __version__
from servetune.core.benchmark import Measurement, Percentiles
from servetune.core.node import NodeFacts
from servetune.core.study import StoredStudy, StudySpec
from servetune.core.trial import RunPurpose, RunRecord, TrialRecord
from servetune.report import SIMULATED, sets, verdict
from servetune.tuner.confirm import baselines, compared, valued


def provenance(
    stored: StoredStudy, records: Sequence[TrialRecord], record: TrialRecord, run: RunRecord
) -> tuple[str, ...]:
    """Header of an export: study, trial, node, engine version, date, and the measured table against the baseline."""
    base = next(iter(baselines(records)), None)
    facts = run.facts
    lines = [f"WARNING: this command failed: {failed}"] if (failed := how_it_failed(record)) else []
    lines += [f"servetune {__version__}: study {stored.name}, trial {record.number}, {sets(stored, record)}"]
    lines += [SIMULATED] if facts.simulated else []
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
    """Fixed-width lines: concurrency, output tokens/s, baseline, gain, TTFT and TPOT medians.

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
    for level, measured in told.items():
        rate, other = _rate(measured), _rate(base.get(level, []))
        gain = "" if other is None or rate is None else f"{100 * (rate / other - 1):+.1f} %"
        shown = ["" if number is None else f"{number:.1f}" for number in (rate, other)]
        ttft, tpot = _median_ms([m.ttft_s for m in measured]), _median_ms([m.tpot_s for m in measured])
        lines.append(
            f"{level:>11}  {shown[0]:>15}  {shown[1]:>12}  {gain:>7}  "
            f"{'' if ttft is None else f'{ttft:.0f}':>11}  {'' if tpot is None else f'{tpot:.1f}':>11}"
        )
    return lines


def _launches(runs: Sequence[RunRecord]) -> str:
    kind = "fresh launch" if all(run.purpose is RunPurpose.CONFIRM for run in runs) else "launch"
    return f"{len(runs)} {kind}{'es' if len(runs) != 1 else ''}"


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


def _median_ms(percentiles: Sequence[Percentiles | None]) -> float | None:
    known = [1000 * p.p50 for p in percentiles if p is not None]
    return fmean(known) if known else None
