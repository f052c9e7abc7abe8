"""The table of a study: a line of strict JSON for each launch, whatever was measured, without secrets."""

import json
import lzma
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.core.benchmark import Measurement, Percentiles
from servetune.core.engine import EngineChoice
from servetune.core.failure import Evidence, Failure, Phase, Verdict
from servetune.core.node import EnvRef, LaunchSpec, NodeFacts
from servetune.core.space import SearchSpace
from servetune.core.study import StoredStudy, StudySpec
from servetune.core.table import LaunchRow
from servetune.core.trial import RunPurpose, RunRecord, TrialRecord, TrialState
from servetune.exports import table
from servetune.storage import StudyStore

RECORDED = Path(__file__).parents[1] / "recordings" / "h200" / "study"

text = st.text(st.characters(blacklist_categories=("Cs",)), max_size=20)
flag = st.from_regex(r"\A[a-z][a-z0-9-]{0,8}\Z")
words = st.one_of(
    st.integers(-9, 9999).map(str),
    st.floats(0, 1).map(str),
    st.sampled_from(["auto", "1e5", "007", "nan", "inf", "-1", "a b"]),
)
any_float = st.floats()
seconds = st.floats(0, 1e6)


def launch_of(flags, env, secret):
    argv = ["python3", "-m", "sglang.launch_server", "--model-path", "/m", "--host", "127.0.0.1", "--port", "30000"]
    for name, value in flags.items():
        argv += [f"--{name}", *([] if value is None else [value])]
    hidden = [f"--{secret}", EnvRef(from_env="KEY")] if secret else []
    return LaunchSpec(argv=(*argv, *hidden), env={**env, **({"TOKEN": EnvRef(from_env="T")} if secret else {})}, port=1)


launches = st.builds(
    launch_of,
    flags=st.dictionaries(flag, st.none() | words, max_size=4),
    env=st.dictionaries(st.from_regex(r"\A[A-Z_]{1,8}\Z"), text, max_size=2),
    secret=st.sampled_from(["", "api-key"]),
)
percentiles = st.none() | st.builds(
    Percentiles, mean=any_float, p50=any_float, p90=any_float, p95=any_float, p99=any_float
)
measurements = st.builds(
    Measurement,
    concurrency=st.integers(1, 5000),
    output_tokens_per_s=any_float,
    low=any_float,
    high=any_float,
    duration_s=any_float,
    requests_completed=st.integers(0, 10),
    requests_failed=st.integers(0, 10),
    output_tokens=st.integers(0, 10),
    ttft_s=percentiles,
    valid=st.booleans(),
    warnings=st.lists(text, max_size=2).map(tuple),
    details=st.dictionaries(
        st.sampled_from(["client_cpu_s", "ttft_p50_low_s", "server_queued"]), any_float, max_size=3
    ),
)
failures = st.none() | st.builds(
    Failure,
    slug=st.sampled_from(["oom_graph", "unknown"]),
    phase=st.sampled_from(Phase),
    verdict=st.sampled_from(Verdict),
    message=text,
    evidence=st.lists(st.builds(Evidence, line=st.integers(1, 9), text=text), max_size=1).map(tuple),
)
logs = st.fixed_dictionaries(
    {},
    optional={
        "server_args": st.dictionaries(flag, st.none() | st.booleans() | text | st.lists(text, max_size=1), max_size=4),
        "memory_gib": st.dictionaries(st.sampled_from(["weights_gib", "ready_gib"]), any_float, max_size=2),
        "graph_gib": st.just({"target decode": 0.5}),
        "captured_sizes": st.just({"target decode": [1, 2, 8]}),
        "kv_tokens": st.integers(0, 10**7),
        "timeline": st.just(
            [{"phase": "load", "seconds": 2.0}, {"phase": "load", "seconds": 3.0}, {"phase": "serving", "seconds": 9.0}]
        ),
    },
)
runs = st.builds(
    RunRecord,
    trial=st.integers(0, 9),
    attempt=st.integers(0, 2),
    purpose=st.sampled_from(RunPurpose),
    launch=launches,
    facts=st.builds(NodeFacts, node=st.just("local"), gpu_names=st.just(("NVIDIA H200",)), simulated=st.booleans()),
    started_at=st.just("2026-11-29T21:39:13.701Z"),
    finished_at=st.none() | st.just("2026-11-29T21:40:00.000Z"),
    phase_s=st.dictionaries(st.sampled_from(["ready", "probe", "level:1"]), seconds, max_size=3),
    node_s=seconds,
    measurements=st.lists(measurements, max_size=3).map(tuple),
    failure=failures,
    log_facts=logs,
    log_warnings=st.lists(text, max_size=2).map(tuple),
)
records = st.builds(
    TrialRecord,
    number=st.integers(0, 9),
    state=st.sampled_from(TrialState),
    point=st.just({}),
    assignment=st.just({}),
    baseline=st.booleans(),
    runs=st.lists(runs, max_size=3).map(tuple),
)
STUDY = StudySpec(study="s", engine=EngineChoice(model="/m"), space=SearchSpace(name="none"))
STORED = StoredStudy(name="s", spec=STUDY, source="", fingerprint="", created_at="2026-11-29T21:00:00.000Z")


def no_odd_numbers(word):
    raise AssertionError(f"{word} is no JSON")


@given(st.lists(records, max_size=3))
@settings(max_examples=60, deadline=None)
def test_every_launch_is_a_line_that_reads_back_as_it_was_written(told):
    lines = table.render_study(STORED, told).split("\n")
    assert lines.pop() == ""
    launched = [run for record in told for run in record.runs]
    assert len(lines) == len(launched)
    for line, run in zip(lines, launched, strict=True):
        assert line.isascii()
        plain = json.loads(line, parse_constant=no_odd_numbers)
        row = LaunchRow.model_validate_json(line)
        assert row.line() == f"{line}\n"
        assert LaunchRow.model_validate(plain) == row
        assert (row.trial, row.attempt, row.purpose) == (run.trial, run.attempt, run.purpose)
        assert dict(row.phase_s) == dict(run.phase_s)
        assert (row.failure is None) == (run.failure is None)
        for level, measured in zip(row.levels, run.measurements, strict=True):
            rate = measured.output_tokens_per_s
            assert level.output_tokens_per_s == (rate if math.isfinite(rate) else None)
            assert not any(name.endswith("_low_s") for name in level.details)


@given(launches)
@settings(max_examples=100, deadline=None)
def test_flags_are_those_of_the_command_line(launch):
    flags = table.flags_of(launch)
    assert not flags.keys() & {"model-path", "host", "port"}
    rebuilt = {}
    for name, value in flags.items():
        if isinstance(value, EnvRef):
            assert name in ("api-key", "env.TOKEN")
        elif not name.startswith("env."):
            rebuilt[f"--{name}"] = "" if value is True else str(value)
    words = [word for word in launch.argv[9:] if isinstance(word, str) and word != "--api-key"]
    written = {}
    for word in words:
        if word.startswith("--"):
            last = word
            written[last] = ""
        else:
            written[last] = f"{written[last]} {word}".strip()
    assert rebuilt == written
    assert {name: value for name, value in launch.env.items()} == {
        name.removeprefix("env."): value for name, value in flags.items() if name.startswith("env.")
    }


def test_a_secret_is_the_name_of_its_variable_everywhere():
    launch = launch_of({}, {}, "api-key")
    run = RunRecord(
        trial=0,
        attempt=0,
        purpose=RunPurpose.SEARCH,
        launch=launch,
        facts=NodeFacts(node="local"),
        started_at="2026-11-29T21:39:13.701Z",
        log_facts={"server_args": {"api-key": "s3cret", "tp-size": 1}},
    )
    record = TrialRecord(number=0, state=TrialState.RUNNING, point={}, assignment={}, runs=(run,))
    line = table.render_study(STORED, [record])
    assert "s3cret" not in line
    assert json.loads(line)["flags"] == {"api-key": {"from_env": "KEY"}, "env.TOKEN": {"from_env": "T"}}


def test_a_line_of_another_shape_is_refused():
    row = json.loads((RECORDED / "h200-moe.jsonl").read_text().splitlines()[0])
    for change in ({"schema": 2}, {"surprise": 1}, {"node_s": -1}):
        try:
            LaunchRow.model_validate({**row, **change})
        except ValueError:
            continue
        raise AssertionError(change)


@pytest.mark.parametrize("study", ["h200-moe", "h200-streaming"])
def test_the_recorded_tables_are_the_recorded_studies(tmp_path, study):
    """Each is what `export --format table` makes of the database beside it."""
    database = tmp_path / "studies.db"
    database.write_bytes(lzma.decompress((RECORDED / "studies.db.xz").read_bytes()))
    with StudyStore.open(f"sqlite:///{database}", create=False) as store:
        made = table.render_study(store.study(study), store.trials(study))
    assert made == (RECORDED / f"{study}.jsonl").read_text()
    rows = [LaunchRow.model_validate_json(line) for line in made.splitlines()]
    assert all(row.gpu.names == ("NVIDIA H200",) and not row.simulated for row in rows)
    assert {row.trial for row in rows if row.baseline} == {0}
    assert all(row.failure is None for row in rows)
