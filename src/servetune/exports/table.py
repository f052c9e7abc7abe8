"""The whole study as a table: one line of JSON for each launch (`core.table`), to keep, to read and to replay."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from servetune.core.benchmark import Measurement
from servetune.core.failure import Failure
from servetune.core.node import EnvRef, LaunchSpec, Text
from servetune.core.space import Value
from servetune.core.study import StoredStudy, StudySpec
from servetune.core.table import EngineFacts, FailureRow, FlagValue, GpuFacts, LaunchRow, LevelRow, Load
from servetune.core.trial import RunRecord, TrialRecord

#: Words that say where to listen and what to serve: not part of a configuration.
SERVING = ("model-path", "host", "port")
#: Of a level's details, the intervals of latencies stay in the database: they are most of its bytes.
_INTERVALS = ("_low_s", "_high_s")
_WHOLE = re.compile(r"0|-?[1-9]\d*")


def render_study(stored: StoredStudy, records: Sequence[TrialRecord]) -> str:
    """One line for each launch, by trial and attempt; empty while nothing was launched."""
    asked = asked_flags(records)
    rows = (launch_row(stored.spec, record, run, asked) for record in records for run in record.runs)
    return "".join(row.line() for row in rows)


def asked_flags(records: Sequence[TrialRecord]) -> frozenset[str]:
    """Flags that some launch of the study sets; secret ones are left out."""
    told = [flags_of(run.launch) for record in records for run in record.runs]
    secret = {flag for flags in told for flag, value in flags.items() if isinstance(value, EnvRef)}
    return frozenset(flag for flags in told for flag in flags) - secret


def launch_row(spec: StudySpec, record: TrialRecord, run: RunRecord, asked: frozenset[str]) -> LaunchRow:
    """One launch as a row. `asked`: flags whose value in effect is worth keeping."""
    facts, log = run.facts, run.log_facts
    argument = log.get("server_args")
    arguments = argument if isinstance(argument, Mapping) else {}
    return LaunchRow(
        study=spec.study,
        trial=run.trial,
        attempt=run.attempt,
        purpose=run.purpose,
        baseline=record.baseline,
        trial_state=record.state,
        started_at=run.started_at,
        finished_at=run.finished_at,
        simulated=facts.simulated,
        engine=EngineFacts(
            name=facts.engine_name or spec.engine.name,
            version=facts.engine_version,
            python_version=facts.python_version,
            model=spec.engine.model,
        ),
        gpu=GpuFacts(
            names=facts.gpu_names,
            memory_bytes=facts.gpu_memory_bytes,
            compute_capability=facts.compute_capability,
            interconnect=facts.interconnect,
            driver_version=facts.driver_version,
            cuda_version=facts.cuda_version,
        ),
        load=_load(spec),
        flags=flags_of(run.launch),
        in_effect={flag: arguments[flag] for flag in sorted(asked) if flag in arguments and _plain(arguments[flag])},
        node_s=run.node_s,
        phase_s=run.phase_s,
        startup_s=_startup_s(log),
        memory=dict(_memory(log)),
        levels=tuple(_level(measurement) for measurement in run.measurements),
        log_warnings=run.log_warnings,
        failure=None if run.failure is None else _failure(run.failure),
    )


def _load(spec: StudySpec) -> Load:
    generator = {"name": spec.load_generator.name, **spec.load_generator.settings}
    asked = spec.workload
    return Load(
        input_tokens=asked.input_tokens,
        output_tokens=asked.output_tokens,
        concurrency=asked.concurrency,
        generator=generator,
    )


def flags_of(launch: LaunchSpec) -> dict[str, FlagValue]:
    """What a launch sets: flags without dashes and `env.NAME`, sorted. Numbers are numbers where no digit is lost."""
    found: dict[str, FlagValue] = {f"env.{name}": text for name, text in launch.env.items()}
    words = _spelled(launch.argv)
    return dict(sorted({**found, **{flag: value for flag, value in words if flag not in SERVING}}.items()))


def _spelled(argv: Sequence[Text]) -> Iterator[tuple[str, FlagValue]]:
    """Each flag with the words after it; what stands before the first flag is the program."""
    flag, values = "", list[Text]()
    for word in argv:
        if isinstance(word, str) and word.startswith("--"):
            if flag:
                yield flag, _value(values)
            flag, joined, value = word.removeprefix("--").partition("=")
            values = [value] if joined else []
        else:
            values.append(word)
    if flag:
        yield flag, _value(values)


def _value(words: Sequence[Text]) -> FlagValue:
    secret = next((word for word in words if isinstance(word, EnvRef)), None)
    if secret is not None:
        return secret
    return True if not words else _number(" ".join(str(word) for word in words))


def _number(text: str) -> Value:
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        return float(text) if repr(float(text)) == text and text not in ("nan", "inf", "-inf") else text
    except ValueError:
        return text


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _startup_s(log: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of each phase up to readiness; a phase that is entered twice counts with both."""
    found: dict[str, float] = defaultdict(float)
    for part in log.get("timeline") or ():
        if part["phase"] != "serving":
            found[part["phase"]] += part["seconds"]
    return dict(found)


def _memory(log: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """What the log says of memory and of what was made with it, as one level of names."""
    yield from (log.get("memory_gib") or {}).items()
    for name, used_gib in (log.get("graph_gib") or {}).items():
        yield f"graph_gib.{name}", used_gib
    for name, sizes in (log.get("captured_sizes") or {}).items():
        yield f"largest_graph.{name}", max(sizes, default=None)
    for name in ("kv_tokens", "max_running_requests", "retractions"):
        if log.get(name) is not None:
            yield name, log[name]


def _level(measured: Measurement) -> LevelRow:
    told = measured.model_dump(exclude={"details", "invalid_because"})
    details = {name: value for name, value in measured.details.items() if not name.endswith(_INTERVALS)}
    return LevelRow(**told, details=details)


def _failure(failure: Failure) -> FailureRow:
    told = {
        "class": failure.slug,
        "phase": failure.phase,
        "message": failure.message,
        "verdict": failure.verdict,
        "line": failure.evidence[0].text if failure.evidence else "",
        "blamed": failure.blamed,
    }
    return FailureRow.model_validate(told)
