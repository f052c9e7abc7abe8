"""The scenario fitted to an H200: what the script makes of the table, and as near to it as the page says."""

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from servetune.simulation.configuration import configure
from servetune.simulation.model import nonsense_from, outcome
from servetune.simulation.rates import throughput
from servetune.simulation.scenario import load_scenario
from servetune.simulation.table import load_table

ROOT = Path(__file__).parents[2]
TABLES = [
    ROOT / "tests" / "recordings" / "h200" / "study" / f"{study}.jsonl" for study in ("h200-moe", "h200-streaming")
]
NAME = "moe4b-bf16-1x-h200"


def fitted(tables, file):
    words = [ROOT / "benchmarks" / "fit" / "run.py", *tables, "--name", NAME, "--architecture", "Qwen3MoeForCausalLM"]
    done = subprocess.run([sys.executable, *words, "-o", file], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def again(tmp_path_factory):
    file = tmp_path_factory.mktemp("fit") / f"{NAME}.yaml"
    return file, fitted(TABLES, file)


def test_the_shipped_scenario_is_what_the_script_makes_of_the_table(again):
    shipped = ROOT / "src" / "servetune" / "simulation" / "scenarios" / f"{NAME}.yaml"
    assert again[0].read_text() == shipped.read_text()


def test_the_page_gives_the_errors_that_the_script_prints(again):
    page = (ROOT / "docs" / "simulated-node.md").read_text()
    for line in again[1].splitlines():
        assert line in page


def test_it_is_called_fitted_and_still_simulated(again):
    assert again[0].read_text().startswith("# Fitted by benchmarks/fit/run.py to ")
    assert "(h200-moe, h200-streaming) of 2026-11-29, 2026-11-30" in again[0].read_text().splitlines()[0]


def test_known_factors_are_found_again(tmp_path):
    """Launches made from a base and two factors, without noise."""
    rows = [json.loads(line) for line in TABLES[0].read_text().splitlines()]
    base, factor = rows[0], {"attention-backend": 0.8, "schedule-policy": 1.1}
    made = []
    for number in range(8):
        flags = {"attention-backend": "triton"} if number & 1 else {}
        flags |= {"schedule-policy": "lpm"} if number & 2 else {}
        scale = math.prod(factor[flag] for flag in flags)
        levels = []
        for level in base["levels"]:
            rate = 1000 * level["concurrency"] ** 0.5 * scale
            levels.append({**level, "output_tokens_per_s": rate, "low": 0.99 * rate, "high": 1.01 * rate})
        row = {**base, "trial": number, "baseline": number == 0, "flags": {**base["flags"], **flags}, "levels": levels}
        made.append(json.dumps(row))
    made += [json.dumps(row) for row in broken(base)]
    table = tmp_path / "made.jsonl"
    table.write_text("\n".join(made) + "\n")
    fitted([table], tmp_path / "made.yaml")
    scenario = load_scenario(str(tmp_path / "made.yaml"))
    for found in load_table(str(table)).configurations:
        if found.score() is None:
            continue
        scale = math.prod(factor.get(flag, 1.0) for flag in found.flags)
        for level in scenario.levels:
            configuration, _ = configure(scenario, found.flags)
            assert throughput(scenario, configuration, level) == pytest.approx(1000 * level**0.5 * scale, rel=0.005)
    died = outcome(scenario, {"attention-backend": "flashinfer"}, scenario.levels, random.Random(0))
    assert (died.fault.slug, died.fault.phase.value, len(died.levels)) == ("device_fault", "serving", 2)
    assert nonsense_from(scenario, configure(scenario, {"schedule-policy": "random"})[0]) == 1


def broken(base):
    """A launch that died under load and one that answered nonsense."""
    phases = {"ready": 50.0, "probe": 1.0, "level:1": 12.0, "level:10": 5.0, "stop": 2.0}
    told = {
        "class": "device_fault",
        "phase": "serving",
        "verdict": "infeasible",
        "message": "it died",
        "line": "CUDA error",
    }
    for number, slug, flags in (
        (8, "device_fault", {"attention-backend": "flashinfer"}),
        (9, "wrong_output", {"schedule-policy": "random"}),
    ):
        row = {**base, "trial": number, "baseline": False, "flags": {**base["flags"], **flags}, "phase_s": phases}
        yield {**row, "levels": base["levels"][:1], "failure": {**told, "class": slug}}
