"""A table of measured launches as a scenario: only what is in it, each as it was."""

import json
from pathlib import Path

import pytest

from servetune.cli._replayed_study import replay
from servetune.core.errors import SpecError
from servetune.core.study import NamedChoice
from servetune.core.table import LaunchRow
from servetune.simulation.table import key, load_table, points, rates, space_of

TABLE = Path(__file__).parents[1] / "recordings" / "h200" / "study" / "h200-moe.jsonl"
ROWS = [json.loads(line) for line in TABLE.read_text().splitlines()]
WHOLE = [row for row in ROWS if row["finished_at"] and row["failure"] is None]
STRATEGIES = ("random", "tpe", "adaptive")


def changed(row, trial, **flags):
    """Another launch like `row`, with other flags."""
    set_now = {name: value for name, value in {**row["flags"], **flags}.items() if value is not None}
    return {**row, "trial": trial, "baseline": False, "flags": set_now}


def failed(row, slug, phase, phases, levels, verdict="infeasible"):
    told = {
        "class": slug,
        "phase": phase,
        "message": f"{slug} it was",
        "verdict": verdict,
        "line": "Error",
        "blamed": [],
    }
    return {**row, "failure": told, "phase_s": phases, "levels": row["levels"][:levels], "node_s": sum(phases.values())}


def written(folder, rows):
    file = folder / "table.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def run(place, strategy="random", seed=0, node_hours=24.0):
    return replay(str(place), NamedChoice(name=strategy), seed, node_hours)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_launches_each_measured_configuration_once_and_gets_what_was_measured(strategy):
    table, study = load_table(str(TABLE)), run(TABLE, strategy)
    trials = study["trajectory"]
    assert len(trials) == len(table.configurations)
    for trial in trials:
        found = table.find({flag: value for flag, value in trial["flags"].items() if value is not False})
        assert trial["outcome"] == "complete"
        assert trial["value"] == pytest.approx(found.score(), rel=1e-12)
    assert len({key(trial["flags"]) for trial in trials}) == len(trials)
    assert trials[0]["flags"] == {**trials[0]["flags"], **ROWS[0]["flags"]}
    assert trials[-1]["node_hours"] == pytest.approx(sum(row["node_s"] for row in WHOLE) / 3600, abs=1e-5)
    assert study["optimum"]["score"] == max(trial["value"] for trial in trials)
    assert study["recommended"][-1]["flags"] == study["optimum"]["config"]
    assert study["replayed"]["invented"] is False


def test_strategies_and_seeds_differ_in_order_only():
    orders = {tuple(key(t["flags"]) for t in run(TABLE, "random", seed)["trajectory"]) for seed in range(4)}
    assert len(orders) > 1
    assert len({tuple(sorted(order)) for order in orders}) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_study_replays_itself(strategy):
    assert run(TABLE, strategy, 3) == run(TABLE, strategy, 3)


def test_node_hours_end_a_replay():
    trials = run(TABLE, node_hours=0.1)["trajectory"]
    assert 0 < len(trials) < len(WHOLE)


FAILURES = [
    ("oom_graph", "graph_capture", {"ready": 33.0, "stop": 2.0}, 0),
    ("wrong_output", "serving", {"ready": 50.0, "probe": 4.0, "stop": 2.0}, 0),
    ("device_fault", "serving", {"ready": 50.0, "probe": 1.0, "level:1": 12.0, "level:10": 7.0, "stop": 2.0}, 1),
    ("wrong_output", "serving", {"ready": 50.0, "probe": 1.0, **{f"level:{c}": 9.0 for c in (1, 10, 256, 1024)}}, 4),
]


@pytest.mark.parametrize(("slug", "phase", "phases", "levels"), FAILURES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_failures_and_their_times_are_as_measured(tmp_path, strategy, slug, phase, phases, levels):
    broken = failed(changed(ROWS[0], 100, **{"attention-backend": "flashinfer"}), slug, phase, phases, levels)
    study = run(written(tmp_path, [*WHOLE, broken]), strategy)
    got = {trial["flags"].get("attention-backend"): trial for trial in study["trajectory"]}["flashinfer"]
    assert (got["outcome"], got["class"], got["phase"], got["value"]) == ("pruned", slug, phase, None)
    hours = [0.0, *(trial["node_hours"] for trial in study["trajectory"])]
    spent_s = 3600 * (got["node_hours"] - hours[hours.index(got["node_hours"]) - 1])
    assert spent_s == pytest.approx(broken["node_s"], abs=0.02)


def test_what_says_nothing_of_its_configuration_is_left_out_and_named(tmp_path):
    odd = [
        {**changed(ROWS[0], 101, **{"tp-size": 2}), "finished_at": None},
        {**changed(ROWS[0], 102, **{"tp-size": 3}), "levels": ROWS[0]["levels"][:2]},
        failed(changed(ROWS[0], 103, **{"tp-size": 4}), "host_env", "load", {"ready": 3.0}, 0, "retry"),
        failed(changed(ROWS[0], 104, **{"tp-size": 5}), "gpu_gone", "load", {"ready": 3.0}, 0, "stop"),
    ]
    table = load_table(written(tmp_path, [*WHOLE, *odd]))
    assert len(table.configurations) == len(WHOLE)
    assert [text.split(":")[0] for text in table.left_out] == [
        f"trial {n}, attempt 0 of h200-moe" for n in range(101, 105)
    ]


def test_several_launches_of_one_configuration_are_drawn_by_the_seed(tmp_path):
    again = json.loads(json.dumps({**ROWS[0], "attempt": 1, "purpose": "confirm"}))
    for level in again["levels"]:
        level["output_tokens_per_s"] *= 1.1
    place = written(tmp_path, [*WHOLE, again])
    first = {run(place, seed=seed)["trajectory"][0]["value"] for seed in range(8)}
    assert len(first) == 2
    assert len(load_table(place).configurations) == len(WHOLE)
    assert load_table(place).configurations[0].score() == pytest.approx(sum(first) / 2)


def test_the_space_holds_what_differs_and_its_listed_points_are_the_table():
    table = load_table(str(TABLE))
    space = space_of(table)
    assert space.fixed["load-format"] == "dummy"
    assert not space.fixed.keys() & {parameter.name for parameter in space.parameters}
    listed = [key(space.expand(point)) for point in points(table, space)]
    assert listed == [key(found.flags) for found in table.configurations]


def test_a_level_that_is_not_valid_is_no_measurement():
    row = {**ROWS[0], "levels": [{**level, "valid": level["concurrency"] != 256} for level in ROWS[0]["levels"]]}
    assert rates(LaunchRow.model_validate(row)) == {}


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        ([ROWS[0], {**ROWS[1], "trial": "one"}], ["line 2", "trial", "--format table"]),
        ([ROWS[0], {**ROWS[1], "gpu": {**ROWS[1]["gpu"], "names": ["NVIDIA L4"]}}], ["launches 1 and 2", "gpu", "L4"]),
        ([{**ROWS[0], "finished_at": None}], ["none of its 1 launches", "interrupted"]),
        ([], ["none of its 0 launches"]),
    ],
)
def test_a_wrong_table_is_told_with_its_place(tmp_path, lines, parts):
    with pytest.raises(SpecError) as caught:
        load_table(written(tmp_path, lines))
    for part in ["table.jsonl", *parts]:
        assert part in str(caught.value)


def test_a_table_that_is_not_there_is_told():
    with pytest.raises(SpecError, match=r"no table 'nowhere\.jsonl'"):
        load_table("nowhere.jsonl")
