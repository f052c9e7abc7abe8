"""Studies after something else than plain throughput, as a person runs them."""

import json

import pytest
from click.testing import CliRunner

from servetune.cli import cli

STUDY = """
study: {name}
engine: {{name: sglang, model: /models/kimi-k2.5-int4}}
node: {{name: simulated, scenario: kimi-k2.5-int4-8x-rtx-pro-6000, time_scale: {time_scale}}}
load_generator: {generator}
fixed: {{tp-size: 8}}
baseline: {{disable-custom-all-reduce: true, mem-fraction-static: 0.9}}
search_space:
  parameters:
    max-running-requests: [null, 4]
  hints:
    - {{max-running-requests: 4}}
workload: {{input_tokens: 64, output_tokens: 64, concurrency: {levels}}}
objective: {objective}
timeouts: {{ready_s: 200000, stall_s: 200000, level_s: 2000}}
budget: {{trials: {trials}}}
sampler: {{name: random}}
confirm: {{top: 0, launches: 0}}
"""


def start(servetune, name, generator, objective, levels="[1, 256]", trials=2, time_scale=2000):
    file = servetune.folder / f"{name}.yaml"
    values = {"generator": generator, "objective": objective, "levels": levels, "trials": trials}
    file.write_text(STUDY.format(name=name, time_scale=time_scale, **values))
    servetune("start", file)


def said(servetune, *words, status=0):
    """What a command prints; in this process, since each one of its own costs seconds on a busy machine."""
    done = CliRunner().invoke(cli, [*words, "--storage", f"sqlite:///{servetune.folder}/studies/studies.db"])
    assert (done.exit_code if done.exception is None or status == 0 else status) == status, done.output
    return done.output if done.exception is None or status == 0 else str(done.exception)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_objectives_have_a_front_and_picks(servetune):
    """Four requests at a time give less and each of them sooner."""
    objective = "{maximize: output_tokens_per_s, minimize: tpot_p50_s, level: 256}"
    start(servetune, "two", "{name: scenario, hold_s: 0.05}", objective)
    report = json.loads(said(servetune, "report", "two", "--json"))
    assert [(point["trial"], point["picks"]) for point in report["front"]] == [
        (0, ["throughput"]),
        (1, ["balanced", "latency"]),
    ]
    assert report["unit"] == "tokens/s per s of tpot_p50"
    assert "Pareto front" in said(servetune, "report", "two")
    exports = {pick: said(servetune, "export", "two", "--pick", pick) for pick in ("throughput", "balanced", "latency")}
    assert "--max-running-requests 4" in exports["latency"]
    assert "--max-running-requests" not in exports["throughput"]
    assert "--max-running-requests 4" in said(servetune, "export", "two")  # the balanced one is the default
    refused = said(servetune, "export", "two", "--pick", "latency", "--trial", "1", status=2)
    assert "exclude each other" in refused


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_goodput_is_what_is_told(servetune):
    generator = "{name: closed_loop, goodput: {tpot_s: 10, ttft_s: 60}, check_answers: false}"
    start(servetune, "good", generator, "{maximize: goodput_requests_per_s}", levels="[8]", trials=1, time_scale=200)
    trial = json.loads(said(servetune, "status", "good", "--json"))["trials"][0]
    # 64 tokens a request, some 300 to 430 tokens a second; a busy machine gives less
    assert 0.5 < trial["value"] < 9
    assert "requests/s within limits" in said(servetune, "report", "good")
    assert "has one objective" in said(servetune, "export", "good", "--pick", "latency", status=2)
