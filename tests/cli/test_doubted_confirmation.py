"""What the honesty checks doubt of a confirmation is marked wherever its numbers are shown."""

import io
import json

import pytest
from rich.console import Console

from servetune.cli._provenance import provenance
from servetune.cli.report import show
from servetune.core.benchmark import Measurement, Percentiles
from servetune.core.engine import EngineChoice
from servetune.core.node import LaunchSpec, NodeFacts
from servetune.core.space import SearchSpace
from servetune.core.study import Confirmation, StoredStudy, StudySpec
from servetune.core.trial import RunPurpose, RunRecord, TrialRecord, TrialState
from servetune.report import build

SATURATED = "the client was saturated: its event loop was busy 100 % of the time"
NEAR = "the client was near its limit"
SPEC = StudySpec(
    study="s",
    engine=EngineChoice(model="m"),
    space=SearchSpace(name="x"),
    workload={"concurrency": (1, 10)},
    confirm=Confirmation(top=1, launches=2),
)
STORED = StoredStudy(name="s", spec=SPEC, source="", fingerprint="", created_at="t")


def level(concurrency: int, value: float, doubted: bool, tpot_s: float = 0.02) -> Measurement:
    times = Percentiles(mean=tpot_s, p50=tpot_s, p90=tpot_s, p95=tpot_s, p99=tpot_s)
    return Measurement(
        concurrency=concurrency,
        output_tokens_per_s=value,
        low=value,
        high=value,
        duration_s=30,
        requests_completed=9,
        requests_failed=0,
        output_tokens=9,
        tpot_s=times,
        valid=not doubted,
        warnings=(NEAR, SATURATED) if doubted else (),
        invalid_because=(SATURATED,) if doubted else (),
    )


def trial(number: int, values: list[float], doubted: set[int]) -> TrialRecord:
    """The first value is the search's; `doubted`: launches whose level 10 the client could not measure."""
    runs = [
        RunRecord(
            trial=number,
            attempt=2 * place,
            purpose=RunPurpose.CONFIRM if place else RunPurpose.SEARCH,
            launch=LaunchSpec(argv=("x",), port=1),
            facts=NodeFacts(node="simulated", simulated=True),
            started_at=f"2026-01-01T00:00:{10 * place + number:02}",
            finished_at="t",
            measurements=(
                level(1, value, False),
                level(10, value, place in doubted, 0.0 if place in doubted else 0.02),
            ),
        )
        for place, value in enumerate(values)
    ]
    return TrialRecord(
        number=number,
        state=TrialState.COMPLETE,
        point={},
        assignment={"n": number},
        value=values[0],
        baseline=number == 0,
        runs=tuple(runs),
    )


def told(records) -> tuple[dict, str, str]:
    """The report's JSON, its text, and the header of the best trial's export."""
    report, out = build(STORED, records, {}), io.StringIO()
    show(report, Console(file=out, width=200))
    best = records[report.winner]
    return (
        json.loads(report.model_dump_json()),
        out.getvalue(),
        "\n".join(provenance(STORED, records, best, best.runs[0])),
    )


@pytest.fixture(scope="module")
def doubtful():
    return told([trial(0, [100, 100, 101], set()), trial(1, [150, 150, 151], {2})])


def test_the_report_marks_the_verdict_and_says_why(doubtful):
    found, text, _ = doubtful
    clause = "(?); the honesty checks doubt launches that it counts: trial 1 at concurrency 10 (1 of 2 launches)"
    assert clause in found["verdict"]
    assert "?: the honesty checks doubt it" in text
    assert f"warning: trial 1, confirmation 2, concurrency 10: {SATURATED}" in text


def test_the_json_has_levels_and_warnings_of_the_confirmation(doubtful):
    found, _, _ = doubtful
    assert [ranked["confirmation_not_valid"] for ranked in found["ranking"]] == [[10], []]
    assert [ranked["not_valid"] for ranked in found["ranking"]] == [[], []]
    assert found["warnings"] == [f"trial 1, confirmation 2, concurrency 10: {text}" for text in (SATURATED, NEAR)]


def test_the_export_marks_the_level_and_calls_a_tpot_of_zero_unmeasurable(doubtful):
    _, _, header = doubtful
    (row,) = [line for line in header.splitlines() if line.startswith("         10 ")]
    assert "150.5?" in row
    assert row.endswith("–")
    assert "–: not measurable" in header
    assert "?: the honesty checks doubt it" in header
    assert f"warning: trial 1, confirmation 2, concurrency 10: {SATURATED}" in header
    assert "; the honesty checks doubt launches" in header


def test_the_baselines_doubted_launches_count_as_much():
    found, _, header = told([trial(0, [100, 100, 101], {1}), trial(1, [150, 150, 151], set())])
    assert "that it counts: the baseline at concurrency 10 (1 of 3 launches)" in found["verdict"]
    assert f"warning: trial 0, confirmation 1, concurrency 10: {SATURATED}" in header


def test_so_do_those_of_a_trial_that_did_not_hold_its_lead():
    found, _, _ = told([trial(0, [100, 100, 101], set()), trial(1, [150, 90, 91], {1})])
    assert found["verdict"].startswith("the baseline stands")
    assert "trial 1 at concurrency 10 (1 of 2 launches)" in found["verdict"]


def test_nothing_is_said_where_nothing_is_doubted():
    found, text, header = told([trial(0, [100, 100, 101], set()), trial(1, [150, 150, 151], set())])
    assert found["warnings"] == []
    assert "?" not in text + header
    assert "–" not in header.replace("–: ", "")
