"""Which release knows which flag: the shipped table, an installed package, and what a command gets wrong."""

import json
import textwrap
import time
from pathlib import Path

import pytest
from engines.sglang.commands import RELEASES, assignments
from hypothesis import example, given, settings
from hypothesis import strategies as st

from servetune.engines.sglang.capabilities import (
    capabilities_of,
    read_capabilities,
    releases_with,
    translate,
    violations,
)

#: What the argparse parser of a release itself holds: option → [action, nargs, choices], dumped by that release.
PARSERS = sorted((Path(__file__).parent / "parsers").glob("*.json"))
KINDS = {
    "_StoreTrueAction": "switch",
    "DeprecatedStoreTrueAction": "switch",
    "BooleanOptionalAction": "on_off",
    "DeprecatedAction": "ignored",
}
#: Choices that SGLang computes while it runs; any value is let through.
COMPUTED = {"kv-canary-real-data"}


@pytest.mark.parametrize("path", PARSERS, ids=lambda path: path.stem)
def test_the_table_agrees_with_the_parser_of_the_release(path):
    known = capabilities_of(path.stem).spellings
    real = json.loads(path.read_text())
    negative = {name for name in real if name.startswith("no-") and name not in known}
    assert real.keys() - negative == known.keys()
    for name in real.keys() - negative:
        action, nargs, choices = real[name]
        flag = known[name]
        if action in KINDS:
            assert flag.kind in (KINDS[action], "removed"), name
        if action == "_StoreAction":
            assert flag.valued, name
            assert flag.nargs == nargs, name
        if name not in COMPUTED:
            assert sorted(map(str, flag.choices or ())) == sorted(map(str, choices or ())), name
    assert {known[name[3:]].kind for name in negative} <= {"on_off"}


@pytest.mark.parametrize(
    ("version", "flag", "choices"),
    [
        ("0.5.2", "moe-a2a-backend", {"none", "deepep"}),
        ("0.5.6", "moe-a2a-backend", {"none", "deepep", "mooncake", "ascend_fuseep"}),
        ("0.5.23", "cuda-graph-backend-prefill", {"full", "breakable", "disabled"}),
        ("0.5.15", "flashinfer-allreduce-fusion-backend", {"auto", "trtllm", "mnnvl"}),
        ("0.5.2", "kv-cache-dtype", {"auto", "fp8_e5m2", "fp8_e4m3"}),
    ],
)
def test_choices_by_release(version, flag, choices):
    assert set(capabilities_of(version).flags[flag].choices) == choices


@pytest.mark.parametrize(
    ("version", "table"),
    [("0.5.9", "0.5.9"), ("0.5.12.post1", "0.5.12"), ("0.5.12rc1", "0.5.12"), ("0.4.0", "0.5.2"), ("0.6.1", "0.5.23")],
)
def test_the_nearest_older_table_holds(version, table):
    assert capabilities_of(version).table == table
    assert capabilities_of(version).version == version


@pytest.mark.parametrize(
    ("flag", "choice", "words"),
    [
        ("tp-size", None, "0.5.2 and later"),
        ("cuda-graph-max-bs", None, "0.5.2 to 0.5.19"),
        ("enable-piecewise-cuda-graph", None, "0.5.4 to 0.5.9"),
        ("moe-a2a-backend", "flashinfer", "0.5.9 and later"),
        ("cuda-graph-backend-prefill", "tc_piecewise", "0.5.14 to 0.5.21"),
        ("speculative-dflash-draft-window-size", None, "0.5.11, 0.5.13 to 0.5.19"),
        ("no-such-flag", None, ""),
    ],
)
def test_releases_with_a_flag_in_words(flag, choice, words):
    assert releases_with(flag, choice) == words


def test_environment_variables_of_the_engine():
    assert capabilities_of("0.5.9").has_no_effect("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE")
    assert not capabilities_of("0.5.23").has_no_effect("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE")
    assert not capabilities_of("0.5.9").has_no_effect("NCCL_ALGO")


# -- the same thing in another release's words -----------------------------------------------------------------------

PREFILL_OFF = {"cuda-graph-backend-prefill": "disabled"}
TRANSLATIONS = [
    ("0.5.9", {"cuda-graph-max-bs-decode": 128}, {"cuda-graph-max-bs": 128}),
    ("0.5.15", {"cuda-graph-max-bs": 128}, {"cuda-graph-max-bs-decode": 128}),
    ("0.5.23", {"cuda-graph-max-bs": 128}, {"cuda-graph-max-bs-decode": 128}),
    ("0.5.23", {"cuda-graph-bs": "1 2"}, {"cuda-graph-bs-decode": "1 2"}),
    ("0.5.9", {"cuda-graph-max-bs-prefill": 64}, {"piecewise-cuda-graph-max-tokens": 64}),
    ("0.5.20", {"piecewise-cuda-graph-max-tokens": 64}, {"cuda-graph-max-bs-prefill": 64}),
    ("0.5.9", PREFILL_OFF, {"enable-piecewise-cuda-graph": False}),
    ("0.5.12", PREFILL_OFF, {"disable-piecewise-cuda-graph": True}),
    ("0.5.2", PREFILL_OFF, {}),
    ("0.5.15", {"enable-piecewise-cuda-graph": False}, PREFILL_OFF),
    ("0.5.9", {"disable-piecewise-cuda-graph": True}, {"enable-piecewise-cuda-graph": False}),
    ("0.5.12", {"enable-piecewise-cuda-graph": True}, {"enforce-piecewise-cuda-graph": True}),
    ("0.5.15", {"enable-piecewise-cuda-graph": True}, {"cuda-graph-backend-prefill": "tc_piecewise"}),
    ("0.5.9", {"cuda-graph-backend-prefill": "tc_piecewise"}, {"enable-piecewise-cuda-graph": True}),
    ("0.5.12", {"cuda-graph-backend-prefill": "breakable"}, {"enable-breakable-cuda-graph": True}),
    ("0.5.20", {"enable-breakable-cuda-graph": True}, {"cuda-graph-backend-prefill": "breakable"}),
    ("0.5.9", {"attn-dp-size": 8}, {"dp-size": 8, "enable-dp-attention": True}),
    ("0.5.9", {"attn-dp-size": 1}, {}),
    ("0.5.23", {"dp-size": 8, "enable-dp-attention": True}, {"attn-dp-size": 8}),
    ("0.5.23", {"dp-size": 8}, {"dp-size": 8}),
    ("0.5.9", {"flashinfer-allreduce-fusion-backend": "auto"}, {"enable-flashinfer-allreduce-fusion": True}),
    ("0.5.23", {"enable-flashinfer-allreduce-fusion": True}, {"enable-flashinfer-allreduce-fusion": True}),
    ("0.5.9", {"dsa-prefill-backend": "flashmla_kv"}, {"nsa-prefill-backend": "flashmla_kv"}),
    ("0.5.20", {"nsa-decode-backend": "fa3"}, {"dsa-decode-backend": "fa3"}),
    ("0.5.9", {"attention-backend": "dsa"}, {"attention-backend": "nsa"}),
    ("0.5.23", {"attention-backend": "nsa"}, {"attention-backend": "nsa"}),
    ("0.5.6", {"enable-flashinfer-cutlass-moe": True}, {"moe-runner-backend": "flashinfer_cutlass"}),
    ("0.5.2", {"enable-flashinfer-cutlass-moe": True}, {"enable-flashinfer-cutlass-moe": True}),
    ("0.5.6", {"enable-deepep-moe": True}, {"moe-a2a-backend": "deepep"}),
    ("0.5.6", {"tp-size": 8, "enable-ep-moe": True}, {"tp-size": 8, "ep-size": 8}),
    ("0.5.23", {"stream-output": True}, {"incremental-streaming-output": True}),
    ("0.5.9", {"tensor-parallel-size": 8}, {"tp-size": 8}),
    ("0.5.2", {"enable-torch-symm-mem": False}, {}),
    (
        "0.5.23",
        {"env.SGLANG_CUTEDSL_MOE_NVFP4_DISPATCH": "1"},
        {"env.SGLANG_MOE_NVFP4_DISPATCH": "1"},
    ),
]


@pytest.mark.parametrize(("version", "given_", "wanted"), TRANSLATIONS)
def test_translation(version, given_, wanted):
    capabilities = capabilities_of(version)
    found, notes = translate(given_, capabilities)
    assert found == wanted
    assert list(found) == list(wanted)
    assert violations(found, capabilities) == []
    assert translate(found, capabilities) == (found, []), "translating twice changes nothing more"
    changed = given_ != wanted and "tensor-parallel-size" not in given_ and False not in given_.values()
    assert bool(notes) or not changed, "what is said otherwise is noted"


@pytest.mark.parametrize(
    ("version", "flags"),
    [
        ("0.5.9", {"cuda-graph-backend-prefill": "breakable"}),
        ("0.5.23", {"enable-piecewise-cuda-graph": True}),
        ("0.5.2", {"moe-a2a-backend": "flashinfer"}),
        ("0.5.9", {"flashinfer-allreduce-fusion-backend": "mnnvl"}),
        ("0.5.9", {"attn-dp-size": 8, "dp-size": 2}),
        ("0.5.23", {"no-such-flag": 1}),
    ],
)
def test_what_has_no_equivalent_is_refused_by_name(version, flags):
    found, _ = translate(flags, capabilities_of(version))
    assert {
        flag for violation in violations(found, capabilities_of(version)) for flag in violation.flags
    } & flags.keys()


@given(st.sampled_from(RELEASES).flatmap(lambda version: st.tuples(st.just(version), assignments(version))))
@example(("0.5.18", {"mamba-scheduler-strategy": "0"}))  # the old spelling takes any word
@settings(max_examples=100, deadline=None)
def test_a_command_of_a_release_passes_and_translating_it_keeps_it_accepted(drawn):
    version, assignment = drawn
    capabilities = capabilities_of(version)
    assert violations(assignment, capabilities) == []
    found, _ = translate(assignment, capabilities)
    assert violations(found, capabilities) == []
    assert translate(found, capabilities)[0] == found


# -- a command as it is written --------------------------------------------------------------------------------------


def judged(version, **flags):
    found = violations({name.replace("_", "-"): value for name, value in flags.items()}, capabilities_of(version))
    return [(violation.rule, *violation.flags) for violation in found]


@pytest.mark.parametrize(
    ("flags", "rules"),
    [
        ({"tp_size": 8, "mem_fraction_static": 0.9, "trust_remote_code": True}, []),
        ({"tp_size": "8"}, []),
        ({"tp_size": "eight"}, ["wrong-type"]),
        ({"tp_size": 8.5}, ["wrong-type"]),
        ({"tp_size": True}, ["wrong-type"]),
        ({"trust_remote_code": "yes"}, ["wrong-type"]),
        ({"trust_remote_code": False}, []),
        ({"moe_a2a_backend": "flashinfr"}, ["unknown-choice"]),
        ({"moe_a2a_backend": False}, ["wrong-type"]),
        ({"kv_cache_dtype": "mxfp8"}, ["unknown-choice"]),
        ({"cuda_graph_bs": "1 2 4"}, []),
        ({"cuda_graph_bs": "1 two"}, ["wrong-type"]),
        ({"cuda_graph_bs": ""}, ["wrong-type"]),
        ({"json_model_override_args": "{}"}, []),
        ({"mm_process_config": "{"}, ["wrong-type"]),
        ({"no_such": 1, "also_none": 2}, ["unknown-flag", "unknown-flag"]),
        ({"enable_flashinfer_cutlass_moe": True}, ["unknown-flag"]),
    ],
)
def test_judging_a_command(flags, rules):
    assert [rule for rule, *_ in judged("0.5.9", **flags)] == rules


def test_human_readable_numbers():
    assert judged("0.5.23", max_total_tokens="8k", context_length="1Mi") == []
    assert judged("0.5.23", max_total_tokens="8 k") == [("wrong-type", "max-total-tokens")]
    assert judged("0.5.9", max_total_tokens="8k") == [("wrong-type", "max-total-tokens")]


def test_a_refusal_says_which_releases_have_it_and_what_to_write():
    (violation,) = violations({"cuda-graph-max-bs": 128}, capabilities_of("0.5.23"))
    assert violation.layer == "capability"
    assert violation.message == "SGLang 0.5.23 has no flag --cuda-graph-max-bs; releases with it: 0.5.2 to 0.5.19"
    assert violation.alternatives == ("--cuda-graph-max-bs-decode 128",)
    assert violation.source == "server_args.py (flags of SGLang 0.5.23)"
    (violation,) = violations({"kv-cache-dtype": "nvfp4"}, capabilities_of("0.5.9"))
    assert "releases with it: 0.5.16 and later; allowed: auto, fp8_e5m2" in violation.message
    (violation,) = violations({"enabel-mscclpp": True}, capabilities_of("0.5.9"))
    assert violation.alternatives[0] == "--enable-mscclpp"
    (violation,) = violations({"attention-backend": "dsa"}, capabilities_of("0.5.9"))
    assert violation.alternatives == ("--attention-backend nsa",)


def test_judging_takes_less_than_a_millisecond():
    capabilities = capabilities_of("0.5.23")
    flags = {"tp-size": 8, "cuda-graph-max-bs-decode": 128, "moe-a2a-backend": "none", "mem-fraction-static": 0.9}
    start = time.perf_counter()
    for _ in range(200):
        violations(translate(flags, capabilities)[0], capabilities)
    assert (time.perf_counter() - start) / 200 < 0.001


# -- an installed package --------------------------------------------------------------------------------------------

OLD_SHAPE = """
    CHOICES = ["a", "b"]
    class ServerArgs:
        tp_size: int = 1
        backend: str = "a"
        fast: bool = False
        @staticmethod
        def add_cli_args(parser):
            parser.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=ServerArgs.tp_size)
            parser.add_argument("--backend", type=str, choices=CHOICES + ["c"], default=ServerArgs.backend)
            parser.add_argument("--fast", action="store_true")
            parser.add_argument("--old", action=DeprecatedAction)
            parser.add_argument("--sizes", type=int, nargs="+")
            parser.add_argument("--parser", choices=list(Registry.everything()))
    """
NEW_SHAPE = """
    from sglang.srt.arg_groups.choices import BACKENDS
    class ServerArgs:
        @staticmethod
        def add_cli_args(parser):
            add_cli_args_from_dataclass(parser, ServerArgs)
            parser.add_argument("--old-name", type=int, action=DeprecatedAliasStoreAction, new_flag="--tp-size")
    """
FIELDS = """
    from typing import Literal, Optional
    from sglang.srt.arg_groups.choices import BACKENDS, Phase
    class Parallel:
        tp_size: A[int, Arg(help="x" + f"{1}", aliases=["--tensor-parallel-size"])] = 1
        backend: A[str, Arg(help="x", choices=[*BACKENDS, "c"])] = BACKENDS[0]
        phase: A[Optional[str], Arg(help="x", choices=Phase.ALL)] = None
        mode: A[Literal["on", "off"] | None, "help"] = None
        sizes: A[list[int] | None, "help"] = None
        tokens: A[int, Arg(help="x", type_parser=human_readable_int)] = 4 * 1024
        fast: A[bool, "help " "in two parts"] = False
        tidy: A[bool, Arg(action=argparse.BooleanOptionalAction)] = True
        runner: A[str, Arg(cli_name="--gemm-backend")] = "auto"
        hidden: A[bool, Arg(no_cli=True)] = False
        plain: int = 3
    """


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "site"


def installed(site, files, version="0.5.9"):
    files = {"version.py": f'__version__ = "{version}"\n', **files}
    for name, text in files.items():
        path = site / "sglang" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return site


def test_a_package_with_add_argument_calls(site):
    read = read_capabilities(installed(site, {"srt/server_args.py": OLD_SHAPE}))
    assert read.version == "0.5.9"
    assert sorted(read.flags) == ["backend", "fast", "old", "parser", "sizes", "tp-size"]
    assert read.flags["tp-size"].aliases == ("tensor-parallel-size",)
    assert read.flags["tp-size"].default == 1
    assert read.flags["backend"].choices == ("a", "b", "c")
    assert (read.flags["fast"].kind, read.flags["old"].kind, read.flags["sizes"].nargs) == ("switch", "ignored", "+")
    assert read.flags["parser"].choices is None, "computed while it runs: anything is let through"


def test_a_package_with_annotated_fields(site):
    choices = 'BACKENDS = ["a", "b"]\nclass Phase:\n    ONE = "one"\n    ALL = (ONE, "two")\n'
    files = {
        "srt/server_args.py": NEW_SHAPE,
        "srt/arg_groups/fields/parallel.py": FIELDS,
        "srt/arg_groups/choices.py": choices,
    }
    flags = read_capabilities(installed(site, files)).flags
    assert flags["backend"].choices == ("a", "b", "c")
    assert flags["backend"].default == "a"
    assert flags["phase"].choices == ("one", "two")
    assert flags["mode"].choices == ("on", "off")
    assert (flags["sizes"].kind, flags["sizes"].nargs) == ("int", "+")
    assert (flags["tokens"].kind, flags["tokens"].default) == ("human_int", 4096)
    assert (flags["fast"].kind, flags["tidy"].kind) == ("switch", "on_off")
    assert (flags["old-name"].deprecated, flags["old-name"].instead) == (True, "--tp-size")
    assert "gemm-backend" in flags
    assert not {"hidden", "plain", "runner"} & flags.keys()


def test_what_was_read_is_kept_by_version_and_content(site):
    installed(site, {"srt/server_args.py": OLD_SHAPE})
    first = read_capabilities(site)
    (kept,) = (site.parent / "cache" / "servetune" / "sglang-flags").iterdir()
    assert kept.name.startswith("0.5.9-")
    assert read_capabilities(site) == first
    kept.write_text("{ half a file")
    assert read_capabilities(site) == first
    installed(site, {"srt/server_args.py": OLD_SHAPE.replace('"--fast"', '"--faster"')})
    assert "faster" in read_capabilities(site).flags


def test_no_package(site):
    with pytest.raises(FileNotFoundError):
        read_capabilities(site)


@pytest.mark.parametrize("flag", ["tool-call-parser", "reasoning-parser"])
def test_parsers_that_a_function_lists_are_choices(flag):
    known = capabilities_of("0.5.23")
    assert {"auto", "kimi_k2", "glm45"} <= set(known.flags[flag].choices)
    (found,) = violations({flag: "kimi_k9"}, known)
    assert found.rule == "unknown-choice"
    assert "kimi_k2" in found.alternatives
