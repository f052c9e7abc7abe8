"""The registry of rules, what holds for every rule, and the answers' shape."""

import subprocess
import sys
from pathlib import Path

import pytest
from engines.sglang.rule_cases import H200, MODELS, NODES, RTX_PRO, UNKNOWN_NODE, VERSIONS, config, judged, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.engines.sglang.rules import all_rules, effective, judge, violations
from servetune.engines.sglang.rules._registry import FIRST, LAST, Stage, parse_version, rule
from servetune.engines.sglang.rules._run import _FROM_0_5_12, _TO_0_5_11
from servetune.engines.sglang.rules._state import DEFAULTS

ROOT = Path(__file__).parents[3]
RULES = {r.id: r for r in all_rules()}


@pytest.mark.parametrize("found", all_rules(), ids=lambda r: r.id)
def test_every_rule_says_what_it_is(found):
    assert found.id.partition(".")[2], "an id is topic.name"
    assert found.summary.endswith(".")
    assert len(found.source) > 10
    assert FIRST <= found.since <= found.until <= LAST
    assert found.majors is None or found.majors <= {7, 8, 9, 10, 11, 12}
    assert found.versions


def test_ids_are_unique():
    assert len(RULES) == len(all_rules()) > 150
    with pytest.raises(ValueError, match="is used twice"):
        rule("moe.flashinfer_cutlass", Stage.CHECK, source="nowhere")(lambda _: iter(()))
    assert {r.id: r for r in all_rules()} == RULES


def test_every_stage_runs_in_every_version():
    only_later = {Stage.GRAPHS_LATE, Stage.GRAPHS_ROLE}
    assert set(_FROM_0_5_12) == set(Stage)
    assert set(_TO_0_5_11) == set(Stage) - only_later
    assert not [r.id for r in all_rules() if r.stage in only_later and r.since < (0, 5, 12)]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.5.9", (0, 5, 9)),
        ("v0.5.12", (0, 5, 12)),
        ("0.5.10rc0", (0, 5, 10)),
        ("0.5.6.post2", (0, 5, 6)),
        ("0.5.18+cu130", (0, 5, 18)),
        ("0.6", (0, 6, 0)),
    ],
)
def test_versions(text, version):
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["", "main", "5", "x.y.z"])
def test_what_is_no_version_is_named(text):
    with pytest.raises(ValueError, match="engine_version"):
        judge({}, H200, text, None)


def test_versions_of_a_rule_for_people():
    assert RULES["a2a.spans_tensor_parallel"].versions == "all"
    assert RULES["a2a.flashinfer_needs_dp_attention"].versions == "0.5.13 and later"
    assert RULES["runtime.fa4_gpu"].versions == "up to 0.5.12"
    assert RULES["graphs.piecewise_off"].versions == "0.5.10 to 0.5.13"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("model", [*MODELS, None])
@pytest.mark.parametrize("facts", [*NODES.values(), UNKNOWN_NODE], ids=[*NODES, "unknown"])
def test_plain_launches_over_all_gpus_are_not_refused(version, model, facts):
    """A model that cannot run on the node at all is refused by a runtime rule, never by the engine's own checks."""
    found = judged(version, facts, model, tp_size=8)
    assert not [v for v in found.violations if v.layer == "rule"]
    assert {v.rule for v in found.violations} <= {"runtime.fp8_blocks", "runtime.nvfp4_gpu"}


def test_a_violation_names_flags_as_the_assignment_spells_them():
    (found,) = judge({"tp": 3, "ep": 2}, RTX_PRO, "0.5.9", None).violations
    assert found.rule == "runtime.expert_ranks"
    assert found.flags == ("ep", "tp")
    assert found.layer == "runtime"
    assert found.alternatives == ("--ep-size 1", "--ep-size 3")
    assert found.message == "--ep-size 2 does not divide --tp-size 3"
    assert "parallel_state.py" in found.source


def test_numbers_may_be_text():
    assert judge({"tp-size": "8", "mem-fraction-static": "0.8"}, RTX_PRO, "0.5.9", None).effective.assignment[
        "mem-fraction-static"
    ] == pytest.approx(0.8)
    assert refused("0.5.9", RTX_PRO, None, tp_size="8", ep_size="3") == ["runtime.expert_ranks"]


def test_unknown_flags_are_left_to_the_capabilities():
    found = judged("0.5.9", RTX_PRO, None, flag_of_the_future="x", tp_size=2)
    assert not found.violations
    assert found.effective.assignment["flag-of-the-future"] == "x"


def test_without_facts_of_the_gpu_only_gpu_free_rules_speak():
    assert not refused("0.5.9", UNKNOWN_NODE, None, attention_backend="trtllm_mla", tp_size=64)
    assert refused("0.5.9", UNKNOWN_NODE, None, tp_size=8, dp_size=3, enable_dp_attention=True) == ["dp.divides_tp"]


#: Values for every field that a rule reads: a bit of everything that each field may hold.
_WORDS = sorted(
    {
        *("auto", "none", "deepep", "flashinfer", "mori", "pplx", "megamoe", "triton", "flashinfer_cutlass", "cutlass"),
        *("flashinfer_trtllm", "flashinfer_cutedsl", "deep_gemm", "marlin", "fa3", "fa4", "trtllm_mla", "trtllm_mha"),
        *("flashmla", "nsa", "dsa", "fp8", "modelopt_fp4", "mxfp8", "nvfp4", "fp8_e4m3", "bfloat16", "EAGLE", "NGRAM"),
        *("low_latency", "normal", "disabled", "full", "breakable", "tc_piecewise", "page_first", "lof", "static"),
    }
)
_VALUES = st.one_of(
    st.booleans(), st.sampled_from(_WORDS), st.integers(-1, 600), st.sampled_from([1, 2, 8, 64, 8192]), st.floats(0, 2)
)
_SIZES = st.sampled_from([1, 2, 4, 8])
_ASSIGNMENTS = st.builds(
    lambda sizes, rest: rest | sizes,
    st.fixed_dictionaries({"tp-size": _SIZES}, optional={"ep-size": _SIZES, "dp-size": _SIZES, "pp-size": _SIZES}),
    st.dictionaries(
        st.sampled_from([n.replace("_", "-") for n, d in DEFAULTS.items() if not isinstance(d, int) or d in (0, 1)]),
        _VALUES,
        max_size=8,
    ),
)


def _typed(assignment):
    """A value that the parser would refuse for the flag is left out: layer 1 stands before these rules."""

    def fits(name, value):
        default = DEFAULTS[name.replace("-", "_")]
        if isinstance(default, bool):
            return isinstance(value, bool)
        if isinstance(default, (int, float)):
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        if isinstance(default, str):
            return isinstance(value, str)
        numbers = ("_size", "_bs", "_tokens", "_requests", "_steps", "_topk", "_length", "_prefill", "_decode")
        name = name.replace("-", "_")
        if name.startswith(("cuda_graph_bs", "piecewise_cuda_graph_tokens")):
            return False
        if name.endswith(numbers) and "backend" not in name:
            return isinstance(value, int) and not isinstance(value, bool)
        return isinstance(value, float) if name == "mem_fraction_static" else isinstance(value, str)

    return {name: value for name, value in assignment.items() if fits(name, value)}


@settings(max_examples=400, deadline=None)
@given(_ASSIGNMENTS.map(_typed), st.sampled_from(VERSIONS), st.sampled_from([*MODELS, None]), st.sampled_from([*NODES]))
def test_rules_never_fail_and_are_functions_of_their_arguments(assignment, version, model, name):
    facts, before = NODES[name], dict(assignment)
    model_config = config(model) if model else None
    first = judge(assignment, facts, version, model_config)
    assert judge(dict(reversed(assignment.items())), facts, version, model_config).effective.resolved == (
        first.effective.resolved
    )
    assert assignment == before
    assert violations(assignment, facts, version, model_config) == first.violations
    assert effective(assignment, facts, version, model_config) == first.effective
    for found in first.violations:
        assert found.layer in ("rule", "runtime")
        assert found.message
        assert found.flags
        assert found.rule in RULES
    assert None not in first.effective.assignment.values()


def test_the_table_of_rules_is_current():
    checked = subprocess.run(
        [sys.executable, str(ROOT / "tools/rules_table.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
