"""The two journeys replayed in virtual time: what is known not to work costs no launch."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from servetune.cli._virtual_study import run_virtual
from servetune.core.study import Confirmation, NamedChoice
from servetune.core.trial import TrialState
from servetune.engines.sglang import create
from servetune.engines.sglang.memory import class_key
from servetune.simulation.model_configs import model_config
from servetune.simulation.scenario import facts, load_scenario

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "servetune"
PYTHON = CACHE / "sglang-cpu/current/venv/bin/python"
RELEASE = CACHE / "sglang-oracle/0.5.9"
JOURNEYS = ("kimi-k2.5-int4-8x-rtx-pro-6000", "glm-5-nvfp4-8x-rtx-pro-6000")
#: Phases in which the engine's own checks end a launch.
CHECKED = ("parse", "validate")


@pytest.fixture(
    scope="module", params=[*((journey, "adaptive") for journey in JOURNEYS), (JOURNEYS[0], "random")], ids="-".join
)
def journey(request):
    """(scenario, study, every launch in order: assignment and its run)."""
    place, strategy = request.param
    hours = 3.0 if strategy == "adaptive" else 5.0
    keys = {"sampler": NamedChoice(name=strategy), "seed": 3, "node_hours": hours, "confirm": Confirmation(top=0)}
    spec, store, _, _ = run_virtual(place, keys)
    launches = [(record.assignment, run) for record in store.trials(spec.study) for run in record.runs]
    assert len(launches) >= 5
    return load_scenario(place), spec, launches, store


def test_nothing_is_launched_that_the_engines_checks_refuse(journey):
    _, _, launches, _ = journey
    ended = [run.failure.phase.value for _, run in launches if run.failure is not None]
    assert not [phase for phase in ended if phase in CHECKED]


def test_no_launch_is_outside_the_memory_interval_once_its_class_has_been_seen(journey):
    scenario, spec, launches, _ = journey
    engine, known, seen = create(spec.engine, {}), facts(scenario), set()
    for assignment, run in launches:
        key = class_key(assignment)
        if key in seen:
            found = engine.memory(assignment, known)
            assert found.known_from == "class"
            assert found.fits, (assignment, found)
            assert run.failure is None or run.failure.slug != "kv_budget", assignment
        engine.learn(assignment, run.log_facts)
        if "after_load_gib" in run.log_facts.get("memory_gib", {}):
            seen.add(key)
    assert seen


def test_random_proposals_are_refused_at_no_cost(journey):
    _, spec, _launches, store = journey
    refused = [record for record in store.trials(spec.study) if record.state is TrialState.REJECTED]
    assert all(not record.runs for record in refused)
    assert refused or spec.sampler.name != "random"
    assert all(violation.source for record in refused for violation in record.rejected)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_real_engine_would_have_taken_every_launch(journey, tmp_path):
    if not (PYTHON.exists() and RELEASE.exists()):
        pytest.skip("needs SGLang 0.5.9: tools/sglang_cpu/install.sh, then tools/sglang_oracle/install.sh 0.5.9")
    scenario, _, launches, _ = journey
    (tmp_path / "config.json").write_text(json.dumps(model_config(scenario.model)))
    asked = {}
    for _, run in launches:
        words = [word if isinstance(word, str) else "x" for word in run.launch.argv]
        words = words[words.index("--model-path") + 2 :]
        asked[json.dumps(["--model-path", str(tmp_path), "--trust-remote-code", *words])] = run
    node = scenario.node
    command = [
        *(PYTHON, ROOT / "tools/sglang_oracle/oracle.py", "--release", RELEASE, "--gpus", node.gpu_count),
        *("--compute-capability", node.compute_capability, "--memory-mib", node.gpu_memory_mib, "--keys", "tp_size"),
    ]
    done = subprocess.run(
        list(map(str, command)), input="\n".join(asked) + "\n", capture_output=True, text=True, check=True
    )
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(verdicts) == len(asked)
    refused = [(words, verdict["message"]) for words, verdict in zip(asked, verdicts, strict=True) if not verdict["ok"]]
    assert not refused
