"""`servetune validate` as a person and a script use it: a study, one command, many commands, wrong input."""

import json
import re
import shlex
from pathlib import Path

import engine_package
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.cli import cli

CONFIGS = Path(__file__).parents[1] / "engines/sglang/model_configs"
KIMI, QWEN = CONFIGS / "kimi-k2.5.json", CONFIGS / "qwen3-235b-a22b-fp8.json"
RTX_PRO = """
gpu_name: NVIDIA RTX PRO 6000 Blackwell Server Edition
gpu_count: 8
gpu_memory_mib: 97887
compute_capability: 12.0
interconnect: pcie
cuda_version: 12.9
engine: {name: sglang, version: 0.5.9}
"""
H200 = {
    "gpu_name": "NVIDIA H200",
    "gpu_count": 8,
    "gpu_memory_mib": 143771,
    "compute_capability": "9.0",
    "interconnect": "nvlink",
    "cuda_version": "13.0",
    "engine": {"name": "sglang", "version": "0.5.23"},
}
EP = "--tp-size 8 --cuda-graph-max-bs 128 --moe-a2a-backend flashinfer --moe-runner-backend flashinfer_cutlass"
WORDS = shlex.split(
    f"""{EP} --dp-size 0 -1 1e9 '' -- - --pp-size --ep-size --page-size --chunked-prefill-size --cuda-graph-bs nan inf
    --tp-size --nnodes --pp-size 1000000000000000000000
    --enable-hierarchical-cache --swa-full-tokens-ratio --enable-eplb --ep-num-redundant-experts --max-total-tokens
    --mem-fraction-static --context-length --max-running-requests --json-model-override-args {{}} []
    '{{"num_hidden_layers": "x"}}' --speculative-algorithm EAGLE --enable-dp-attention --attn-cp-size --quantization"""
)
KEYS = {"verdict", "violations", "effective", "no_effect", "changed", "memory", "notes"}


def run(*words, status=0, stdin=None):
    done = CliRunner().invoke(cli, ["validate", *map(str, words)], input=stdin)
    told = done.exit_code, type(done.exception).__name__, str(done.exception), done.output
    if status == 0:
        assert done.exit_code == 0, told
    else:
        assert getattr(done.exception, "exit_status", done.exit_code) == status, told
    return done


@pytest.fixture
def rtx(tmp_path):
    path = tmp_path / "node.yaml"
    path.write_text(RTX_PRO)
    return ("--node-facts", path, "--model-config", KIMI)


@pytest.fixture
def h200(tmp_path):
    path = tmp_path / "node.json"
    path.write_text(json.dumps(H200))
    return ("--node-facts", path, "--model-config", QWEN)


def judged(stand_ins, command, *options):
    done = run(*stand_ins, *options, "--json", "--", *shlex.split(command))
    found = json.loads(done.stdout)
    assert set(found) == KEYS
    assert (found["verdict"] == "refused") == bool(found["violations"])
    for violation in found["violations"]:
        assert set(violation) == {"rule", "layer", "flags", "message", "alternatives", "source"}
        assert violation["layer"] in ("capability", "rule", "runtime", "memory", "preflight")
    return found


def rules_of(found):
    return [violation["rule"] for violation in found["violations"]]


class TestOneCommand:
    def test_what_a_command_becomes(self, rtx):
        found = judged(rtx, f"{EP} --enable-torch-symm-mem")
        assert found["effective"]["ep-size"] == 8
        assert found["effective"]["mem-fraction-static"] == 0.778734296875
        assert "enable-torch-symm-mem" not in found["effective"]
        assert [idle["flag"] for idle in found["no_effect"]] == ["enable-torch-symm-mem"]
        first = found["changed"][0]
        assert (first["flag"], first["before"], first["after"]) == ("ep-size", 1, 8)

    def test_the_first_journeys_numbers_are_foretold(self, rtx):
        plain, parallel = judged(rtx, "--tp-size 8 --cuda-graph-max-bs 128"), judged(rtx, EP)
        assert plain["verdict"] == "ok"
        more = parallel["memory"]["weights_gib"] - plain["memory"]["weights_gib"]
        assert more == pytest.approx(5.4, abs=0.05)
        assert parallel["memory"]["fraction_needed"] == pytest.approx(0.827, abs=0.0005)

    def test_an_automatic_fraction_is_reported_and_a_named_one_refused(self, rtx):
        automatic, named = judged(rtx, EP), judged(rtx, f"{EP} --mem-fraction-static 0.78")
        assert "memory.fraction_too_low" not in rules_of(automatic)
        assert automatic["memory"]["fits"] is False
        assert "the smallest fraction is 1 - 16.3/94.0 = 0.827" in automatic["memory"]["problems"][0]
        assert "memory.fraction_too_low" in rules_of(named)

    def test_refusals_carry_their_source_and_what_to_do(self, h200):
        found = judged(h200, "--tp-size 8 --moe-a2a-backend flashinfer --moe-runner-backend flashinfer_cutlass")
        assert "a2a.flashinfer_needs_dp_attention" in rules_of(found)
        assert all(violation["source"] and violation["message"] for violation in found["violations"])

    @pytest.mark.parametrize(
        ("version", "command", "instead"),
        [
            ("0.5.23", "--cuda-graph-max-bs 128", "--cuda-graph-max-bs-decode 128"),
            ("0.5.9", "--cuda-graph-max-bs-decode 128", "--cuda-graph-max-bs 128"),
            ("0.5.9", "--attn-dp-size 8", "--dp-size 8 --enable-dp-attention"),
            ("0.5.20", "--disable-piecewise-cuda-graph", "--cuda-graph-backend-prefill disabled"),
            ("0.5.9", "--tp-sise 8", "--tp-size"),
        ],
    )
    def test_an_unknown_spelling_is_refused_and_the_translation_offered(self, rtx, version, command, instead):
        found = judged(rtx, command, "--engine-version", version)
        assert found["verdict"] == "refused"
        assert found["violations"][0]["layer"] == "capability"
        assert found["violations"][0]["alternatives"][0] == instead

    def test_a_deprecated_spelling_that_still_works_is_accepted(self, rtx):
        assert judged(rtx, "--tp-size 8 --cuda-graph-max-bs 128", "--engine-version", "0.5.18")["verdict"] == "ok"
        assert judged(rtx, "--tp 8 --dp 8 --enable-dp-attention", "--engine-version", "0.5.23")["verdict"] == "ok"

    def test_one_mistake_does_not_hide_the_rest(self, rtx):
        found = judged(rtx, f"{EP} --no-such-flag 1 --kv-cache-dtype fp7".replace("_cutlass", "_trtllm"))
        assert {violation["layer"] for violation in found["violations"]} >= {"capability", "rule"}
        assert rules_of(found)[:2] == ["unknown-flag", "unknown-choice"]

    def test_a_whole_command_line_with_variables(self, rtx):
        found = judged(rtx, f"NCCL_ALGO=Tree python3 -m sglang.launch_server --model-path /m --port 1 {EP}")
        assert "runtime.nccl_tree_in_graphs" in rules_of(found)

    def test_overrides_of_the_models_config_count(self, rtx):
        text = json.dumps({"text_config": {**json.loads(KIMI.read_text())["text_config"], "num_hidden_layers": 10}})
        small = judged(rtx, f"--tp-size 8 --json-model-override-args '{text}'")
        assert small["memory"]["weights_gib"] < 15

    def test_nothing_after_the_dashes_is_no_command(self, rtx, servetune):
        study = servetune.write_study("s")
        for stand_ins in (rtx, (study,)):
            assert "no command follows `--`" in str(run(*stand_ins, "--", status=2).exception)

    def test_for_people(self, rtx):
        text = run(*rtx, "--", *shlex.split(f"{EP} --enable-torch-symm-mem --mem-fraction-static 0.8")).stdout
        for words in (
            "refused: sglang 0.5.9 on 8 × NVIDIA RTX PRO 6000",
            "refused by memory memory.fraction_too_low",
            "    instead: --mem-fraction-static above 0.827",
            "changed: --ep-size 1 becomes 8",
            "no effect: --enable-torch-symm-mem",
            "effective: --tp-size 8",
            "memory fractions from 0.827 to",
        ):
            assert words in text

    def test_a_study_gives_engine_and_node(self, servetune):
        study = servetune.write_study("s")
        found = json.loads(servetune("validate", study, "--json", "--", *shlex.split(EP)).stdout)
        assert found["memory"]["fraction_needed"] == pytest.approx(0.827, abs=0.0005)
        again = servetune("validate", study, "--engine-version", "0.5.23", "--json", "--", "--tp-size", "8").stdout
        assert json.loads(again)["effective"]["cuda-graph-max-bs-decode"] == 512

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.sampled_from(WORDS) | st.text(max_size=6), min_size=1, max_size=9),
        st.sampled_from(["0.5.2", "0.5.9", "0.5.15", "0.5.23", "0.4.1", "1.0.0"]),
    )
    def test_whatever_is_written_is_judged(self, tmp_path_factory, words, version):
        folder = tmp_path_factory.getbasetemp()
        (folder / "node.yaml").write_text(RTX_PRO)
        stand_ins = ("--node-facts", folder / "node.yaml", "--model-config", KIMI, "--engine-version", version)
        json.loads(run(*stand_ins, "--json", "--", *words).stdout)


class TestBatch:
    def test_one_verdict_a_line_in_order(self, rtx, tmp_path):
        commands = [EP.split(), [], ["--no-such-flag"], ["--tp-size", "16"]]
        path = tmp_path / "batch.jsonl"
        path.write_text("\n".join(map(json.dumps, commands)) + "\n\n")
        lines = run(*rtx, "--batch", path, "--json").stdout.splitlines()
        found = [json.loads(line) for line in lines]
        assert [set(verdict) for verdict in found] == [KEYS] * 4
        assert [rules_of(verdict)[:1] for verdict in found[2:]] == [["unknown-flag"], ["runtime.more_ranks_than_gpus"]]
        assert "runtime.more_ranks_than_gpus" not in rules_of(found[1])  # no arguments at all are a command here
        singly = [judged(rtx, shlex.join(command)) for command in commands if command]
        assert [verdict for verdict, command in zip(found, commands, strict=True) if command] == singly

    def test_from_standard_input(self, rtx):
        assert len(run(*rtx, "--batch", "-", stdin='["--tp-size", "8"]\n["--tp-size", "4"]').stdout.splitlines()) == 2

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('["--tp-size", "8"]\n["--tp-size", 8]', "batch.jsonl:2: got 8"),
            ('{"a": 1}', "batch.jsonl:1"),
            ("--tp-size 8", "batch.jsonl:1: not JSON"),
            ('[["--tp-size"]]', "batch.jsonl:1"),
            ("\n\nnull", "batch.jsonl:3"),
            ("[" * 5000, "batch.jsonl:1"),
        ],
    )
    def test_a_malformed_line_is_named_before_anything_is_answered(self, rtx, tmp_path, text, said):
        (tmp_path / "batch.jsonl").write_text(text)
        done = run(*rtx, "--batch", tmp_path / "batch.jsonl", status=2)
        assert said in str(done.exception)
        assert done.stdout == ""


class TestWrongInput:
    @pytest.mark.parametrize(
        ("name", "text", "said"),
        [
            ("n.yaml", "gpu_count: 0", "n.yaml:1:12: gpu_count: got 0"),
            ("n.yaml", "gpu_nmae: x", "did you mean 'gpu_name'"),
            ("n.yaml", "gpu_memory_mib: lots", "n.yaml:1:17: gpu_memory_mib: got 'lots'"),
            ("n.yaml", "\ncompute_capability: sm120", "n.yaml:2:21: compute_capability"),
            ("n.yaml", "interconnect: infiniband", "'pcie' or 'nvlink'"),
            ("n.yaml", "engine: {name: vllm2}", "engine.name: got 'vllm2'; allowed: sglang"),
            ("n.yaml", "engine: {version: newest}", "engine.version"),
            ("n.yaml", "{gpu_name: NVIDIA H200, gpu_count: 0}", "n.yaml:1:36: gpu_count: got 0"),
            ("n.yaml", "- 1", "a mapping"),
            ("n.json", '{"gpu_count": 8,}', "n.json:1:17: not valid JSON"),
            ("n.yaml", "", "empty"),
        ],
    )
    def test_node_facts(self, tmp_path, name, text, said):
        (tmp_path / name).write_text(text)
        done = run("--node-facts", tmp_path / name, "--model-config", KIMI, "--", status=2)
        assert said in str(done.exception)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("[]", "one JSON object"),
            ("{}", "no model's config.json"),
            ('{\n "architectures": [', "c.json:2:"),
            ('{"architectures": ["X"], "hidden_size": "wide"}', "hidden_size"),
            ('{"architectures": ["X"], "num_hidden_layers": [1]}', "c.json"),
            ('{"architectures": 7}', "architectures"),
        ],
    )
    def test_model_config(self, rtx, tmp_path, text, said):
        (tmp_path / "c.json").write_text(text)
        done = run(*rtx[:2], "--model-config", tmp_path / "c.json", "--", status=2)
        assert said in str(done.exception)

    def test_missing_files_and_missing_parts(self, rtx, tmp_path):
        for words, said in (
            ((*rtx[:2], "--"), "--model-config is missing"),
            ((*rtx[2:], "--"), "--node-facts is missing"),
            ((), "name a STUDY"),
            ((*rtx, "--batch", "x", "--"), "not both"),
            ((*rtx, "--batch", tmp_path / "none.jsonl"), "none.jsonl: there is no such file"),
            ((*rtx[:2], "--model-config", tmp_path / "none.json", "--"), "none.json: there is no such file"),
            (("none.yaml",), "none.yaml"),
            ((*rtx, "--engine-version", "newest", "--"), "--engine-version: got 'newest'"),
        ):
            assert said in str(run(*words, status=2).exception)

    def test_an_unknown_version_is_asked_for(self, tmp_path):
        (tmp_path / "n.yaml").write_text("gpu_count: 8\n")
        done = run("--node-facts", tmp_path / "n.yaml", "--model-config", KIMI, "--", status=2)
        assert "--engine-version" in str(done.exception)

    def test_a_typo_in_fixed_is_named_with_file_and_line(self, servetune):
        file = servetune.write_study("typo")
        text = file.read_text()
        file.write_text(text.replace("{tp-size: 8}", "{tp-sise: 8}"))
        line = text[: text.index("fixed")].count("\n") + 1
        for words in (("validate", file), ("start", file)):
            err = servetune(*words, status=2).stderr
            assert f"typo.yaml:{line}:9: fixed: SGLang 0.5.9 has no flag --tp-sise" in err
            assert "--tp-size" in err
        assert "no studies yet" in servetune("status").stdout

    @pytest.mark.parametrize(
        ("old", "new", "at"),
        [
            ("disable-custom-all-reduce: true", "disable-custom-all-reduse: true", "baseline"),
            ("chunked-prefill-size: [2048", "chunked-prefil-size: [2048", "chunked"),
        ],
    )
    def test_typos_elsewhere(self, servetune, old, new, at):
        file = servetune.write_study("typo")
        file.write_text(file.read_text().replace(old, new))
        line = file.read_text()[: file.read_text().index(new)].count("\n") + 1
        err = servetune("validate", file, status=2).stderr
        assert f"typo.yaml:{line}:" in err

    def test_all_of_them_are_told_at_once_each_in_its_section(self, tmp_path):
        file = tmp_path / "s.yaml"
        file.write_text(
            "study: s\nengine: {name: sglang, model: /m, version: 0.5.9}\nnode: {name: local}\n"
            "fixed: {tp-sise: 8}\nbaseline: {no-such: 1}\n"
            "search_space: {parameters: {page-sise: [1, 16]}}\n"
        )
        (tmp_path / "node.yaml").write_text(RTX_PRO)
        lines = str(run(file, "--node-facts", tmp_path / "node.yaml", status=2).exception).splitlines()
        told = sorted(line.strip().split("; ")[0] for line in lines[1:])
        assert told == [
            f"{file}:4:9: fixed: SGLang 0.5.9 has no flag --tp-sise",
            f"{file}:5:12: baseline: SGLang 0.5.9 has no flag --no-such",
            f"{file}:6:29: SGLang 0.5.9 has no flag --page-sise",
        ]

    def test_a_wrong_flag_of_the_baseline_alone_is_placed_there(self, servetune):
        file = servetune.write_study("typo")
        file.write_text(file.read_text().replace("disable-custom-all-reduce: true", "no-such: true"))
        line = file.read_text()[: file.read_text().index("baseline")].count("\n") + 1
        said = str(run(file, status=2).exception)
        assert f"typo.yaml:{line}:12: baseline: SGLang 0.5.9 has no flag --no-such" in said


class TestAStudyByItsName:
    def test_one_that_was_started_is_checked(self, servetune):
        servetune("start", servetune.write_study("started", trials=1))
        assert servetune("validate", "started", "--sample", "5").stdout.startswith("started: valid\n")
        assert json.loads(servetune("validate", "started", "--json", "--", "--tp-size", "8").stdout)["verdict"] == "ok"
        err = servetune("validate", "startde", status=2).stderr
        assert "'startde' is no file" in err
        assert "started" in err

    def test_without_a_database_both_kinds_are_named(self, servetune):
        err = servetune("validate", "started", status=2).stderr
        assert "'started' is no file, and no study that was started: " in err


class TestAnInterpreterThatIsNotHere:
    """A study of a GPU machine, checked on another one."""

    @pytest.fixture
    def study(self, tmp_path):
        file = tmp_path / "s.yaml"
        file.write_text(
            "study: s\nengine: {name: sglang, model: /m, python: /nowhere/python3}\nnode: {name: local}\n"
            "fixed: {tp-sise: 8}\nsearch_space: {parameters: {page-size: [1, 16]}}\n"
        )
        return file

    def test_the_file_is_checked_without_it(self, study):
        first, warning, *rest = run(study, "--sample", "5").stdout.splitlines()
        assert first == f"{study}: valid"
        assert warning.startswith("WARNING: engine.python '/nowhere/python3' cannot be run (no such program)")
        assert "--node-facts FILE --model-config FILE --engine-version VERSION" in warning
        assert any("--tp-sise is in no table" in line for line in rest)

    def test_with_a_version_its_flags_are_checked(self, study):
        said = str(run(study, "--engine-version", "0.5.9", status=2).exception)
        assert f"{study}:4:9: fixed: SGLang 0.5.9 has no flag --tp-sise" in said

    def test_a_command_is_judged_with_the_warning_beside_it(self, study):
        done = run(study, "--engine-version", "0.5.9", "--json", "--", "--tp-size", "8")
        assert done.stderr.startswith("WARNING: engine.python '/nowhere/python3' cannot be run")
        json.loads(done.stdout)

    def test_a_start_is_refused(self, study, servetune):
        assert "engine.python '/nowhere/python3' cannot be run" in servetune("start", study, status=2).stderr


class TestAnUnknownVersion:
    """Of a study, where neither the file nor the node names the engine's version."""

    def test_flags_that_are_not_checked_are_told_and_those_of_no_release_named(self, tmp_path):
        file = tmp_path / "s.yaml"
        file.write_text(
            "study: s\nengine: {name: sglang, model: /m}\n"
            "fixed: {tp-sise: 8, tensor-parallel-size: 8, env.NCCL_ALGO: Ring}\n"
            "search_space: {parameters: {page-size: [1, 16]}}\n"
        )
        (tmp_path / "node.yaml").write_text(RTX_PRO.split("engine:")[0])
        node = ("--node-facts", tmp_path / "node.yaml", "--sample", "5")
        first, many, one = run(file, *node).stdout.splitlines()[:3]
        assert first == f"{file}: valid"
        assert many == (
            "WARNING: 3 flags could not be checked (tp-sise, page-size, tensor-parallel-size): "
            "the engine's version is not known; add --engine-version, "
            "or name the version in the file (engine: {version: …})"
        )
        assert one.startswith("WARNING: --tp-sise is in no table of SGLang's flags, of any release; did you mean --")
        assert "--tp-size" in one
        file.write_text(file.read_text().replace("tp-sise", "tp-size").replace(", tensor-parallel-size: 8", ""))
        assert "WARNING" not in run(file, *node, "--engine-version", "0.5.9").stdout


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    file = tmp_path_factory.mktemp("study") / "s.yaml"
    file.write_text(
        "study: s\nengine: {name: sglang, model: /models/kimi-k2.5-int4}\n"
        "node: {name: simulated, scenario: kimi-k2.5-int4-8x-rtx-pro-6000}\n"
        "search_space: sglang-moe\nfixed: {tp-size: 8, trust-remote-code: true}\n"
    )
    return json.loads(run(file, "--json", "--sample", "300").stdout), run(file, "--sample", "300").stdout


class TestStudy:
    def test_each_layer_is_counted(self, summary):
        found, text = summary
        assert found["sampled"] == 300
        assert sum(found["layers"].values()) == found["refused"] > 0
        assert found["layers"]["rule"] > 0
        assert found["layers"]["runtime"] > 0
        assert f"{found['refused']} are refused before any launch" in text

    def test_the_memory_interval_is_shown_for_each_layout(self, summary):
        found, text = summary
        rows = {row["layout"]: row for row in found["memory"]}
        plain = rows["tp-size=8"]
        assert plain["fraction_needed"][0] == pytest.approx(1 - 21.7 / 94, abs=0.001)
        assert plain["fraction_needed"][0] < plain["fraction_high"][0] <= plain["fraction_high"][1] <= 1
        assert any("dp-size" in layout for layout in rows)
        assert "memory fractions that can work, by parallel layout:" in text
        assert "  tp-size=8: 0.769" in text

    def test_what_the_version_cannot_do_is_listed(self, summary):
        found, text = summary
        assert any("deepep_v2" in note for note in found["notes"])
        assert "note: moe-a2a-backend: a value is dropped: --moe-a2a-backend deepep_v2" in text


class TestNothingCanBeLaunched:
    """What is said first of a file without errors whose study is of no use."""

    ALONE = (
        "nothing can be launched: runtime runtime.more_ranks_than_gpus refuses each of 20 sampled configurations: "
        "16 ranks (tp 16 x pp 1 x replicas 1) need 16 GPUs, the node has 8 (fixed: {tp-size: 16})"
    )

    def study(self, servetune, old, new):
        file = servetune.write_study("s", trials=2)
        file.write_text(file.read_text().replace(old, new))
        return file

    def test_the_rule_and_the_fixed_flag_are_named(self, servetune):
        file = self.study(servetune, "tp-size: 8", "tp-size: 16")
        first, second, *_ = run(file, "--sample", "20").stdout.splitlines()
        assert first == f"{file}: valid, but {self.ALONE}"
        assert second.startswith("WARNING: the baseline is launched although it is refused: 16 ranks")
        assert json.loads(run(file, "--sample", "20", "--json").stdout)["nothing_launched"] == self.ALONE

    def test_of_several_rules_the_most_frequent_is_named(self, servetune):
        file = self.study(servetune, "{low: 0.75, high: 0.93, step: 0.01}", "[0.01, 2.0]")
        found = json.loads(run(file, "--sample", "40", "--json").stdout)["nothing_launched"]
        assert found.startswith("nothing can be launched: each of 40 sampled configurations is refused, ")
        assert "such as: --mem-fraction-static" in found

    def test_a_refused_baseline_is_a_warning_under_the_first_line(self, servetune):
        file = self.study(servetune, "baseline: {", "baseline: {mem-fraction-static: 2.0, ")
        first, second, *_ = run(file, "--sample", "20").stdout.splitlines()
        text = "the baseline is launched although it is refused: --mem-fraction-static 2.0 does not lie between 0 and 1"
        assert (first, second) == (f"{file}: valid", f"WARNING: {text}")
        found = json.loads(run(file, "--sample", "20", "--json").stdout)
        assert (found["nothing_launched"], found["warnings"]) == (None, [text])

    def test_a_start_says_so_once_and_counts_the_rejections(self, servetune):
        file = self.study(servetune, "tp-size: 8", "tp-size: 16")
        file.write_text(
            file.read_text().replace("{low: 0.75, high: 0.93, step: 0.01}", "[0.8, 0.9]") + "sampler: random\n"
        )
        lines = servetune("start", file).stdout.splitlines()
        assert lines[0] == f"WARNING: {self.ALONE.replace('of 20', 'of 200')}"
        assert sum(" rejected: 16 ranks" in line for line in lines) == 3
        (counted,) = (line for line in lines if " more trials rejected" in line)
        assert re.fullmatch(r"  … and \d+ more trials rejected by runtime\.more_ranks_than_gpus", counted)
        rejected = json.loads(servetune("report", "s", "--json").stdout)
        assert max(rejected["rejected"].values()) == 3 + int(counted.split()[2])


class TestANodeWithoutGpus:
    STUDY = "study: s\nengine: {name: sglang, model: /m, version: 0.5.9}\nnode: {name: local}\nfixed: {tp-size: 8}\n"

    def test_it_is_said_loudly(self, tmp_path):
        file = tmp_path / "s.yaml"
        file.write_text(self.STUDY + "search_space: {parameters: {page-size: [1, 16]}}\n")
        (tmp_path / "node.yaml").write_text(RTX_PRO)
        (tmp_path / "bare.yaml").write_text("engine: {name: sglang, version: 0.5.9}\n")
        nothing = run(file, "--node-facts", tmp_path / "bare.yaml", "--sample", "5")
        assert "WARNING: the description names no GPU" in nothing.stdout
        with_gpus = run(file, "--node-facts", tmp_path / "node.yaml", "--sample", "5")
        assert "WARNING" not in with_gpus.stdout

    def test_a_study_for_a_cpu_needs_none(self, tmp_path):
        file = tmp_path / "s.yaml"
        study = self.STUDY.replace("tp-size: 8", "device: cpu")
        file.write_text(study + "search_space: {parameters: {page-size: [1, 16]}}\n")
        (tmp_path / "bare.yaml").write_text("engine: {name: sglang, version: 0.5.9}\n")
        done = run(file, "--sample", "5", "--node-facts", tmp_path / "bare.yaml")
        assert "WARNING" not in done.stdout


class TestPreflight:
    """`--preflight`: the word of an installed engine; here a stand-in, of which no rule of ours knows page size 48."""

    def test_the_engines_own_word_is_added(self, rtx, tmp_path):
        ask = ("--preflight", "--engine-python", engine_package.python(tmp_path))
        found = judged(rtx, "FAKE_LEFT_BEHIND=1 --tp-size 8 --page-size 48 --chunked-prefill-size 9600", *ask)
        assert [v["layer"] for v in found["violations"]] == ["preflight"]
        assert found["violations"][0]["message"] == "page_size 48 is good for nothing"
        assert found["violations"][0]["flags"] == ["page-size"]
        assert judged(rtx, "--tp-size 8", *ask)["verdict"] == "ok"
        (tmp_path / "b.jsonl").write_text('["--page-size", "48"]\n["--tp-size", "8"]\n')
        lines = run(*rtx, *ask, "--batch", tmp_path / "b.jsonl").stdout.splitlines()
        assert [json.loads(line)["verdict"] for line in lines] == ["refused", "ok"]

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (lambda folder: (), "name its interpreter with --engine-python"),
            (lambda folder: ("--engine-python", folder / "none"), "cannot be started"),
            (lambda folder: ("--engine-python", engine_package.python(folder, "cannot be imported")), "libcudart"),
            (
                lambda folder: ("--engine-python", engine_package.python(folder), "--engine-version", "0.5.10"),
                "has version 0.5.9 of the engine, not 0.5.10",
            ),
        ],
    )
    def test_an_engine_that_cannot_be_asked_is_an_error(self, rtx, tmp_path, options, said):
        done = run(*rtx, "--preflight", *options(tmp_path), "--", "--tp-size", "8", status=2)
        assert said in str(done.exception)

    def test_a_studys_refusals_are_counted_with_the_engines_words(self, tmp_path):
        file = tmp_path / "s.yaml"
        file.write_text(
            "study: s\nengine: {name: sglang, model: /m, version: 0.5.9}\nnode: {name: local}\n"
            "fixed: {chunked-prefill-size: 9600}\n"
            "search_space: {parameters: {page-size: [16, 48], disable-custom-all-reduce: [null, true]}}\n"
        )
        (tmp_path / "node.yaml").write_text(RTX_PRO)
        ask = ("--preflight", "--engine-python", engine_package.python(tmp_path), "--sample", "40")
        node = ("--node-facts", tmp_path / "node.yaml")
        found = json.loads(run(file, *node, *ask, "--json").stdout)
        assert 0 < found["layers"]["preflight"] == found["refused"] < 40
        assert found["asked"] > found["distinct"] > 0
        (why,) = found["rejected"]
        assert why == "preflight preflight.check: page_size 48 is good for nothing"
        text = run(file, *node, *ask).stdout
        assert f"({found['refused']} by preflight)" in text
        assert f"the engine itself was asked about {found['asked']} distinct ones" in text

    def test_what_is_no_judgement_refuses_nothing(self, rtx, tmp_path):
        ask = ("--preflight", "--engine-python", engine_package.python(tmp_path, "misses a file"))
        done = run(*rtx, *ask, "--json", "--", "--tp-size", "8")
        assert json.loads(done.stdout)["verdict"] == "ok"
        assert "could not judge a command" in done.stderr


class TestVersionsWithoutATable:
    @pytest.mark.parametrize(
        ("version", "table", "side"),
        [
            ("0.4.0", "0.5.2", "older"),
            ("0.5", "0.5.2", "older"),
            ("0.5.99", "0.5.23", "newer"),
            ("1.0.0", "0.5.23", "newer"),
        ],
    )
    def test_the_table_that_answers_is_named(self, h200, version, table, side):
        done = run(*h200, "--engine-version", version, "--json", "--", "--tp-size", "8")
        (note,) = json.loads(done.stdout)["notes"]
        assert note.startswith(f"SGLang {version} is not in the tables of flags: those of {table} answer")
        assert f"{'a' if side == 'newer' else 'an'} {side} release" in note
        assert done.stderr == f"note: {note}\n"

    @pytest.mark.parametrize(
        "version", ["0.5.9", "v0.5.9", "0.5.10rc0", "0.5.10.post1", "0.5.9-cu126", "0.5.9+g1a2b.d3"]
    )
    def test_a_release_and_its_builds_need_no_note(self, h200, version):
        done = run(*h200, "--engine-version", version, "--json", "--", "--tp-size", "8")
        assert json.loads(done.stdout)["notes"] == []
        assert done.stderr == ""

    @pytest.mark.parametrize("version", ["0.5.9garbage", "0.5.x", "0.5.9.1.2", "abc", "", "0.5.", "9", "0.5.9-"])
    def test_what_is_no_version_is_an_error(self, h200, version):
        done = run(*h200, f"--engine-version={version}", "--", "--tp-size", "8", status=2)
        assert repr(version) in str(done.exception)

    def test_a_batch_is_told_once(self, h200):
        done = run(*h200, "--engine-version", "1.0.0", "--batch", "-", stdin='["--tp-size", "8"]\n' * 3)
        assert [len(json.loads(line)["notes"]) for line in done.stdout.splitlines()] == [1, 1, 1]
        assert done.stderr.count("note:") == 1

    def test_of_a_study_it_is_a_note_too(self, servetune):
        study = servetune.write_study("s")
        done = servetune("validate", study, "--engine-version", "0.5.99", "--sample", "3", "--json")
        assert "those of 0.5.23 answer" in json.loads(done.stdout)["notes"][0]


class TestHelpAndFiles:
    @pytest.mark.parametrize("word", ["--help", "-h"])
    def test_help_starts_no_server(self, h200, word):
        found = judged(h200, f"--tp-size 8 {word}")
        violation = found["violations"][0]
        assert violation["message"] == f"{word} prints SGLang's flags and ends: no server starts"

    def test_a_file_of_flags_is_not_read_and_said_to_be_so(self, h200):
        found = judged(h200, "--tp-size 8 --config flags.yaml")
        assert found["notes"] == ["flags in the file of --config flags.yaml are not read: it is not on this machine"]

    @pytest.mark.parametrize(
        ("text", "told"),
        [("[]", "an array"), ("null", "null"), ("3", "a number"), ('"x"', "a string"), ("true", "true")],
    )
    def test_a_config_of_another_kind_is_named_in_json_words(self, h200, tmp_path, text, told):
        path = tmp_path / "config.json"
        path.write_text(text)
        done = run(*h200[:2], "--model-config", path, "--", "--tp-size", "8", status=2)
        assert str(done.exception) == f"{path}: a model's config.json holds one JSON object, got {told}"

    @pytest.mark.parametrize(
        ("text", "place"), [("{\n", "1:2"), ("{", "1:2"), ('{"a": 1,\n\n\n', "1:9"), ("\n{\r\n", "2:2")]
    )
    def test_what_is_missing_at_the_end_is_missed_on_the_last_line(self, h200, tmp_path, text, place):
        path = tmp_path / "config.json"
        path.write_bytes(text.encode())
        done = run(*h200[:2], "--model-config", path, "--", "--tp-size", "8", status=2)
        assert str(done.exception).startswith(f"{path}:{place}: not valid JSON")

    def test_the_same_in_yaml(self, tmp_path):
        path = tmp_path / "node.yaml"
        path.write_text("a: [\n")
        done = run("--node-facts", path, "--model-config", QWEN, "--", "--tp-size", "8", status=2)
        assert str(done.exception).startswith(f"{path}:1:5: not valid YAML")

    def test_an_empty_config_is_called_empty(self, h200, tmp_path):
        path = tmp_path / "config.json"
        path.write_text("\n")
        done = run(*h200[:2], "--model-config", path, "--", "--tp-size", "8", status=2)
        assert str(done.exception) == f"{path}: the file is empty; write one JSON object"

    def test_a_batch_without_commands_says_so(self, h200, tmp_path):
        path = tmp_path / "commands.jsonl"
        path.write_text("\n")
        done = run(*h200, "--batch", path)
        assert (done.stdout, done.stderr) == ("", f"note: {path}: there are no commands in it\n")
        assert run(*h200, "--batch", "-", stdin="").stderr == "note: standard input: there are no commands in it\n"
