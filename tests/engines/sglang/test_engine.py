"""SGLang as `core.engine.Engine`."""

import json
import time

import pytest
from engines.sglang.rule_cases import config

from servetune.core.engine import EngineChoice
from servetune.core.node import EnvRef, NodeFacts
from servetune.engines.sglang import create

CHOICE = EngineChoice(model="/m", python="/v/bin/python", env={"HF_HUB_OFFLINE": "1"})
PRO_6000 = NodeFacts(
    node="local",
    gpu_names=("NVIDIA RTX PRO 6000 Blackwell Server Edition",) * 8,
    gpu_memory_bytes=97887 << 20,
    compute_capability="12.0",
    interconnect="pcie",
    cuda_version="12.8",
    engine_name="sglang",
    engine_version="0.5.9",
)
SCENARIO = PRO_6000.model_copy(
    update={
        "simulated": True,
        "engine_rules": False,
        "flag_defaults": {"mem-fraction-static": 0.86, "env.NCCL_ALGO": "Ring"},
    }
)


@pytest.fixture
def engine():
    return create(CHOICE, {"api-key": EnvRef(from_env="KEY")})


def of(version, facts=PRO_6000):
    return facts.model_copy(update={"engine_version": version})


def test_launching_translates_and_is_pure(engine):
    flags = {"tp-size": 8, "cuda-graph-max-bs": 64, "env.NCCL_ALGO": "Tree"}
    spec = engine.launch(flags, of("0.5.23"), 30007)
    assert spec == engine.launch(dict(reversed(flags.items())), of("0.5.23"), 30007)
    assert spec.argv[:9] == (*CHOICE.python.split(), "-m", "sglang.launch_server", "--model-path", "/m",
                             "--host", "127.0.0.1", "--port", "30007")  # fmt: skip
    assert spec.argv[9:] == ("--api-key", EnvRef(from_env="KEY"), "--cuda-graph-max-bs-decode", "64", "--tp-size", "8")
    assert spec.env == {"HF_HUB_OFFLINE": "1", "NCCL_ALGO": "Tree"}
    assert (spec.port, spec.ready_path) == (30007, "/health")


def rules_of(violations):
    return {violation.rule for violation in violations}


def test_checking_asks_capabilities_first_then_rules(engine):
    assert list(engine.check({"tp-size": 8}, PRO_6000)) == []
    assert rules_of(engine.check({"no-such-flag": 1}, PRO_6000)) == {"unknown-flag"}
    assert rules_of(engine.check({"port": 1, "model-path": "/x"}, PRO_6000)) == {"reserved-flag"}
    journey = {"tp-size": 8, "moe-a2a-backend": "flashinfer"}
    found = engine.check(journey, PRO_6000)
    assert found
    assert {violation.layer for violation in found} == {"rule"}


def test_where_the_engines_rules_do_not_hold_spelling_alone_is_checked(engine):
    journey = {"tp-size": 8, "moe-a2a-backend": "flashinfer"}
    assert list(engine.check(journey, SCENARIO)) == []
    assert rules_of(engine.check({"no-such-flag": 1}, SCENARIO)) == {"unknown-flag"}


def test_a_study_may_name_the_version_itself(engine):
    named = create(CHOICE.model_copy(update={"version": "0.5.6"}), {})
    assert rules_of(named.check({"moe-a2a-backend": "flashinfer"}, PRO_6000)) == {"unknown-choice"}
    assert list(named.check({"moe-a2a-backend": "flashinfer"}, SCENARIO)) == []


def test_without_a_version_nothing_is_judged(engine):
    nobody = NodeFacts(node="local")
    assert list(engine.check({"no-such-flag": 1}, nobody)) == []
    assert engine.effective({"b": 1, "a": 2}, nobody) == {"a": 2, "b": 1}
    assert engine.launch({"a": "x"}, nobody, 1).argv[9:11] == ("--a", "x")
    assert engine.defaults(nobody) == {}


def test_defaults_of_the_version_and_of_the_node(engine):
    defaults = engine.defaults(SCENARIO)
    assert defaults["mem-fraction-static"] == 0.86
    assert (defaults["tp-size"], defaults["moe-a2a-backend"], defaults["schedule-policy"]) == (1, "none", "fcfs")
    assert "enable-mscclpp" not in defaults, "a switch that is left out is false"


def test_the_effective_configuration_is_the_key_for_duplicates(engine):
    written = {
        "tensor-parallel-size": 8,
        "moe-a2a-backend": "none",
        "mem-fraction-static": 0.86,
        "disable-custom-all-reduce": False,
        "env.NCCL_ALGO": "Ring",
        "env.SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1",
        "env.NCCL_PROTO": "LL",
    }
    assert engine.effective(written, SCENARIO) == {"env.NCCL_PROTO": "LL", "tp-size": 8}
    assert engine.effective({"disable-custom-all-reduce": True}, SCENARIO) == {"disable-custom-all-reduce": True}


def test_rules_change_the_effective_configuration(engine):
    on_pcie = [{"tp-size": 8}, {"tp-size": 8, "disable-custom-all-reduce": True}]
    assert engine.effective(on_pcie[0], PRO_6000) == engine.effective(on_pcie[1], PRO_6000)
    assert engine.effective(on_pcie[0], SCENARIO) != engine.effective(on_pcie[1], SCENARIO)


@pytest.mark.parametrize("model", [{}, config("kimi-k2.5")], ids=["unknown model", "kimi"])
def test_checking_takes_less_than_a_millisecond(engine, model):
    """Of this thread's CPU time: other work on the machine is no cost of the check."""
    facts = PRO_6000.model_copy(update={"config_json": model})
    flags = {"tp-size": 8, "moe-a2a-backend": "none", "cuda-graph-max-bs": 128, "chunked-prefill-size": 8192}
    assert engine.check(flags, facts) == []
    start = time.thread_time()
    for _ in range(200):
        engine.check(flags, facts)
    assert (time.thread_time() - start) / 200 < 0.001


def test_capabilities_of_the_installed_package_are_preferred(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    package = tmp_path / "venv" / "lib" / "python3.12" / "site-packages" / "sglang"
    (package / "srt").mkdir(parents=True)
    (package / "version.py").write_text('__version__ = "0.5.9"\n')
    (package / "srt" / "server_args.py").write_text(
        "class ServerArgs:\n    def add_cli_args(parser):\n        parser.add_argument('--of-my-own', type=int)\n"
    )
    engine = create(EngineChoice(model="/m", python=str(tmp_path / "venv/bin/python")), {})
    assert list(engine.check({"of-my-own": 1}, SCENARIO.model_copy(update={"simulated": False}))) == []
    assert rules_of(engine.check({"of-my-own": 1}, SCENARIO)) == {"unknown-flag"}, "a simulated node has no package"
    other = SCENARIO.model_copy(update={"simulated": False, "engine_version": "0.5.12"})
    assert rules_of(engine.check({"of-my-own": 1}, other)) == {"unknown-flag"}, "another version is installed"


def test_the_models_config_is_read_where_it_lies(tmp_path):
    config = {"architectures": ["Qwen3MoeForCausalLM"], "num_attention_heads": 6, "hidden_size": 384}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with_model = create(EngineChoice(model=str(tmp_path)), {})
    told = PRO_6000.model_copy(update={"config_json": config})
    flags = {"tp-size": 4}
    assert rules_of(with_model.check(flags, PRO_6000)) == rules_of(create(CHOICE, {}).check(flags, told))
    for broken in ("[1]", "{", "\xff"):
        (tmp_path / "config.json").write_text(broken, encoding="latin-1")
        assert create(EngineChoice(model=str(tmp_path)), {}).check({"tp-size": 8}, PRO_6000) is not None


KIMI = PRO_6000.model_copy(update={"config_json": config("kimi-k2.5")})
PARALLEL = {"tp-size": 8, "moe-a2a-backend": "flashinfer", "moe-runner-backend": "flashinfer_cutlass"}
#: As the log of a launch says it: GiB of one GPU.
BASELINE_LOG = {"memory_gib": {"before_load_gib": 94.0, "after_load_gib": 20.0}}


class TestMemory:
    """The memory layer within the engine: calibrated by every log, for one node, model and version."""

    def test_the_automatic_fraction_is_judged_before_a_launch(self, engine):
        automatic = engine.check({"tp-size": 8, "cuda-graph-max-bs": 512, "quantization": "compressed-tensors"}, KIMI)
        assert automatic == []
        found = engine.memory(PARALLEL, KIMI)
        assert not found.fits
        assert found.fraction_needed == pytest.approx(0.827, abs=0.0005)

    def test_one_log_tightens_the_bounds_of_its_class_and_corrects_the_others(self, engine):
        before = {flags: engine.bounds(dict(flags), KIMI) for flags in map(_frozen, ({"tp-size": 8}, PARALLEL))}
        low, high = before[_frozen({"tp-size": 8})]["mem-fraction-static"]
        assert low == pytest.approx(1 - 21.7 / 94, abs=0.001)
        engine.learn({"tp-size": 8, "mem-fraction-static": 0.9}, BASELINE_LOG)
        own = engine.bounds({"tp-size": 8}, KIMI)["mem-fraction-static"]
        assert own[0] == pytest.approx(1 - 20 / 94)
        assert own[1] <= high
        other = engine.bounds(PARALLEL, KIMI)["mem-fraction-static"]
        assert other[0] > before[_frozen(PARALLEL)]["mem-fraction-static"][0]

    def test_the_check_follows(self, engine):
        flags = {"tp-size": 8, "mem-fraction-static": 0.78}
        assert engine.check(flags, KIMI) == []
        engine.learn({"tp-size": 8}, BASELINE_LOG)
        (violation,) = engine.check(flags, KIMI)
        assert violation.rule == "memory.fraction_too_low"
        assert "1 - 20.0/94.0 = 0.787" in violation.message

    def test_the_fraction_itself_does_not_matter_to_its_bounds(self, engine):
        assert engine.bounds({"tp-size": 8, "mem-fraction-static": 0.1}, KIMI) == engine.bounds({"tp-size": 8}, KIMI)

    def test_nothing_is_bounded_where_nothing_is_known(self, engine):
        assert engine.bounds({"tp-size": 8}, PRO_6000) == {}
        assert engine.bounds({"tp-size": 8}, KIMI.model_copy(update={"engine_rules": False})) == {}
        engine.learn({"tp-size": 8}, {})
        assert engine.bounds({}, KIMI) == {}  # one GPU never holds it

    def test_variables_of_the_study_count(self):
        choice = CHOICE.model_copy(update={"env": {"SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK": "4096"}})
        more = create(choice, {}).memory(PARALLEL, KIMI).workspace_bytes
        assert more == 4 * create(CHOICE, {}).memory(PARALLEL, KIMI).workspace_bytes
        assert not any(name.startswith("env.") for name in create(choice, {}).effective(PARALLEL, KIMI))

    def test_the_size_of_the_checkpoint_corrects_the_shapes(self, tmp_path):
        (tmp_path / "config.json").write_text(json.dumps(config("qwen3-30b-a3b")))
        engine = create(CHOICE.model_copy(update={"model": str(tmp_path)}), {})
        shapes = engine.memory({"tp-size": 8}, PRO_6000).weights_bytes
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 2 * 61.06e9}}))
        known = create(CHOICE.model_copy(update={"model": str(tmp_path)}), {}).memory({"tp-size": 8}, PRO_6000)
        assert known.weights_bytes - shapes == pytest.approx(61.06e9 / 8, rel=0.01)

    def test_a_model_of_the_hugging_face_cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
        folder = tmp_path / "models--Qwen--Q"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs/main").write_text("abc")
        (folder / "snapshots/abc").mkdir(parents=True)
        (folder / "snapshots/abc/config.json").write_text(json.dumps(config("llama-3.1-8b")))
        engine = create(CHOICE.model_copy(update={"model": "Qwen/Q"}), {})
        assert engine.memory({}, PRO_6000).weights_bytes / 2**30 == pytest.approx(15, abs=0.5)


def _frozen(flags):
    return tuple(flags.items())
