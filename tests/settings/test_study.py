"""Study files as people write them."""

from pathlib import Path

import pytest

from servetune.core.errors import SpecError
from servetune.core.node import EnvRef
from servetune.core.study import StudySpec
from servetune.settings import is_secret_name, load_study

ROOT = Path(__file__).parents[2]

ISSUE = """
study: kimi-k2.5
engine: {name: sglang, model: /models/kimi-k2.5-int4, python: /root/ml-env/bin/python3, env: {HF_HUB_OFFLINE: "1"}}
node: {name: local}
search_space: sglang-moe
fixed: {tp-size: 8, trust-remote-code: true}
baseline: {}
workload: {input_tokens: 512, output_tokens: 256, concurrency: [1, 10, 256, 1024],
  requests_per_level: auto, warmup: auto}
objective: {maximize: output_tokens_per_s, aggregate: geometric_mean}
budget: {trials: 40, node_hours: 12, patience: 15}
timeouts: {ready_s: 1800, stall_s: 600, level_s: 600}
sampler: {name: tpe, seed: 3}
storage: sqlite:///studies/studies.db
"""
SMALL = "study: s\nengine: {model: /m}\nsearch_space: {page-size: [1, 16]}\n"


def study(tmp_path, text, overrides=None) -> StudySpec:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return load_study(path, overrides or {})


def test_every_key_of_the_documented_example(tmp_path):
    spec = study(tmp_path, ISSUE)
    assert spec.study == "kimi-k2.5"
    assert spec.engine.python == "/root/ml-env/bin/python3"
    assert spec.engine.env == {"HF_HUB_OFFLINE": "1"}
    assert spec.space.name == "sglang-moe"
    assert spec.space.fixed == {"tp-size": 8, "trust-remote-code": True}
    assert spec.workload.concurrency == (1, 10, 256, 1024)
    assert (spec.budget.trials, spec.budget.node_hours, spec.budget.patience) == (40, 12, 15)
    assert spec.timeouts.ready_s == 1800
    assert (spec.sampler.name, spec.seed) == ("tpe", 3)
    assert spec.source_file == str((tmp_path / "study.yaml").resolve())


def test_short_forms(tmp_path):
    text = SMALL + "node: local\nsampler: random\nworkload: {concurrency: 8}\nobjective: {level: 8}\n"
    spec = study(tmp_path, text)
    assert (spec.node.name, spec.sampler.name, spec.workload.concurrency) == ("local", "random", (8,))
    assert spec.objective.value({8: 5.0}) == 5.0


def test_weights_per_level(tmp_path):
    spec = study(tmp_path, SMALL + "workload: {concurrency: [1, 8]}\nobjective: {weights: {1: 1, 8: 3.0}}\n")
    assert spec.objective.weights == {1: 1.0, 8: 3.0}


def test_secrets_stay_references(tmp_path):
    text = SMALL.replace("{model: /m}", "{model: /m, env: {HF_TOKEN: {from_env: MY_TOKEN}}}")
    spec = study(tmp_path, text + "fixed: {api-key: {from_env: SERVER_KEY}, max-total-tokens: 5000}\n")
    assert spec.engine.env == {"HF_TOKEN": EnvRef(from_env="MY_TOKEN")}
    assert spec.secret_flags == {"api-key": EnvRef(from_env="SERVER_KEY")}
    assert spec.space.fixed == {"max-total-tokens": 5000}


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("api-key", True),
        ("admin_api_key", True),
        ("env.HF_TOKEN", True),
        ("ssl-keyfile-password", True),
        ("CLIENT_SECRET", True),
        ("Hf-Token", True),
        ("max-total-tokens", False),
        ("ssl-keyfile", False),
        ("tokenizer-path", False),
        ("speculative-token-map", False),
    ],
)
def test_names_of_secrets(name, secret):
    assert is_secret_name(name) is secret


def test_environment_is_text_as_written(tmp_path):
    text = SMALL.replace("{model: /m}", "{model: /m, env: {A: 1, B: 010, C: true, D: 1.50, E: ''}}")
    assert study(tmp_path, text).engine.env == {"A": "1", "B": "010", "C": "true", "D": "1.50", "E": ""}


def test_a_flag_of_several_words(tmp_path):
    spec = study(tmp_path, SMALL + "fixed: {cuda-graph-bs: [1, 2, 4]}\n")
    assert spec.space.fixed == {"cuda-graph-bs": "1 2 4"}


def test_home_of_a_local_study(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    text = SMALL.replace("/m}", "~/m, python: ~/v/bin/python}")
    assert study(tmp_path, text).engine.model == "/home/me/m"
    assert study(tmp_path, text).engine.python == "/home/me/v/bin/python"


def test_baseline_names_a_bundle(tmp_path):
    text = "study: s\nengine: {model: /m}\nsearch_space: simulated\nbaseline: {allreduce: mscclpp, page-size: 16}\n"
    spec = study(tmp_path, text)
    assert spec.baseline == {"disable-custom-all-reduce": True, "enable-mscclpp": True, "page-size": 16}


def test_overrides_are_laid_over_the_file(tmp_path):
    spec = study(tmp_path, SMALL + "budget: {trials: 9, patience: 4}\n", {"budget.trials": 5, "study": "t"})
    assert (spec.study, spec.budget.trials, spec.budget.patience) == ("t", 5, 4)


def test_a_wrong_override_names_the_command_line(tmp_path):
    with pytest.raises(SpecError, match=r"^command line: budget.trials: got 'x'; allowed: a whole number$"):
        study(tmp_path, SMALL, {"budget": {"trials": "x"}})


def test_several_problems_in_one_error(tmp_path):
    text = SMALL + "".join(f"wrong{i}: 1\n" for i in range(7))
    with pytest.raises(SpecError) as caught:
        study(tmp_path, text)
    lines = str(caught.value).split("\n")
    assert lines[0].startswith("7 problems in ")
    assert len(lines) == 7
    assert lines[-1] == "  … and 2 more"


@pytest.mark.parametrize("name", ["none.yaml", "."])
def test_no_file(tmp_path, name):
    with pytest.raises(SpecError, match=r"no such file|not a file"):
        load_study(tmp_path / name)


def test_a_file_that_is_too_large(tmp_path):
    (tmp_path / "big.yaml").write_text("# " + "x" * (1 << 20))
    with pytest.raises(SpecError, match="bytes are too many"):
        load_study(tmp_path / "big.yaml")


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_studies(path):
    assert load_study(path).study == path.stem


def test_files_of_the_load_generator_lie_beside_the_study(tmp_path):
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "2 + 2 =", "expected": "4"}\n')
    (tmp_path / "traffic.jsonl").write_text('{"input": 5, "output": 7}\n')
    (tmp_path / "s.yaml").write_text(
        "study: s\nengine: {name: sglang, model: /m}\nsearch_space: {parameters: {tp-size: [1, 2]}}\n"
        "load_generator: {name: closed_loop, tasks: tasks.jsonl, lengths: {trace: traffic.jsonl}}\n"
    )
    settings = load_study(tmp_path / "s.yaml").load_generator.settings
    assert settings["tasks"] == str(tmp_path / "tasks.jsonl")
    assert settings["lengths"] == {"trace": str(tmp_path / "traffic.jsonl")}
