"""A search space in the words of the installed release."""

from pathlib import Path

import pytest

from servetune.core.engine import EngineChoice
from servetune.core.errors import SpecError
from servetune.core.node import NodeFacts
from servetune.core.space import BundleDomain, CategoricalDomain, IntDomain
from servetune.engines.sglang import create
from servetune.settings import load_space


def facts(version, **more):
    return NodeFacts(node="x", simulated=True, gpu_names=("GPU",) * 8, engine_version=version, **more)


def resolve(mapping, version, fixed=None, **more):
    space = load_space(mapping, Path(), fixed or {})
    space = space.model_copy(update={"fixed": {**space.fixed, **(fixed or {})}})
    return create(EngineChoice(model="/m"), {}).resolve_space(space, facts(version, **more))


def domains(space):
    return {parameter.name: parameter.domain for parameter in space.parameters}


def test_what_the_release_knows_stays_as_it_is():
    mapping = {"parameters": {"moe-a2a-backend": ["none", "flashinfer"], "cuda-graph-max-bs": {"low": 8, "high": 512}}}
    space, notes = resolve(mapping, "0.5.9", {"tp-size": 8})
    assert notes == []
    assert space.fixed == {"tp-size": 8}
    assert list(domains(space)) == ["moe-a2a-backend", "cuda-graph-max-bs"]


def test_a_renamed_flag_is_renamed_everywhere():
    mapping = {
        "parameters": {
            "cuda-graph-max-bs": {"low": 8, "high": 512, "log": True},
            "page-size": {"values": [1, 16], "when": {"cuda-graph-max-bs": [8]}},
        },
        "hints": [{"cuda-graph-max-bs": 8, "page-size": 16}],
    }
    space, notes = resolve(mapping, "0.5.23", {"stream-output": True})
    assert domains(space)["cuda-graph-max-bs-decode"] == IntDomain(low=8, high=512, log=True)
    assert space.parameters[1].when.any_of == {"cuda-graph-max-bs-decode": (8,)}
    assert space.hints == ({"cuda-graph-max-bs-decode": 8, "page-size": 16},)
    assert space.fixed == {"incremental-streaming-output": True}
    assert notes == [
        "--stream-output becomes --incremental-streaming-output for SGLang 0.5.23",
        "--cuda-graph-max-bs becomes --cuda-graph-max-bs-decode for SGLang 0.5.23",
    ]


def test_a_switch_may_become_a_choice():
    mapping = {
        "parameters": {
            "enable-piecewise-cuda-graph": [False, True],
            "page-size": {"values": [1], "when": {"enable-piecewise-cuda-graph": [True]}},
        }
    }
    space, _ = resolve(mapping, "0.5.15")
    assert domains(space)["cuda-graph-backend-prefill"] == CategoricalDomain(choices=("disabled", "tc_piecewise"))
    assert space.parameters[1].when.any_of == {"cuda-graph-backend-prefill": ("tc_piecewise",)}


def test_a_switch_may_become_a_bundle_of_two():
    mapping = {
        "parameters": {
            "enable-piecewise-cuda-graph": [False, True],
            "page-size": {"values": [1], "when": {"enable-piecewise-cuda-graph": [False]}},
        },
        "hints": [{"enable-piecewise-cuda-graph": True}],
    }
    space, _ = resolve(mapping, "0.5.12")
    options = {"false": {"disable-piecewise-cuda-graph": True}, "true": {"enforce-piecewise-cuda-graph": True}}
    assert domains(space)["enable-piecewise-cuda-graph"] == BundleDomain(options=options)
    assert space.active(space.parameters[1], {"enable-piecewise-cuda-graph": "false"})
    assert not space.active(space.parameters[1], {"enable-piecewise-cuda-graph": "true"})
    assert space.hints == ({"enable-piecewise-cuda-graph": "true"},)


def test_values_that_the_release_does_not_know_are_dropped_with_a_sentence():
    mapping = {"parameters": {"moe-a2a-backend": ["none", "flashinfer"]}, "hints": [{"moe-a2a-backend": "flashinfer"}]}
    space, notes = resolve(mapping, "0.5.6")
    assert domains(space)["moe-a2a-backend"] == CategoricalDomain(choices=("none",))
    assert space.hints == ()
    assert notes == [
        "moe-a2a-backend: a value is dropped: --moe-a2a-backend flashinfer is no choice of SGLang 0.5.6; "
        "releases with it: 0.5.9 and later"
    ]


@pytest.mark.parametrize("choices", [[False, True], [None, True]])
def test_an_unknown_flag_is_dropped_where_it_may_be_left_out(choices):
    space, notes = resolve({"enable-torch-symm-mem": choices, "page-size": [1]}, "0.5.2")
    assert list(domains(space)) == ["page-size"]
    assert notes == [
        "enable-torch-symm-mem is not searched over: SGLang 0.5.2 has no flag --enable-torch-symm-mem; "
        "releases with it: 0.5.3 and later"
    ]


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"enable-torch-symm-mem": [True]}, "--enable-torch-symm-mem"),
        ({"attn-cp-size": {"low": 1, "high": 8}}, "--attn-cp-size"),
        ({"no-such-flag": ["a", "b"]}, "--no-such-flag"),
        ({"moe-a2a-backend": ["flashinfer"]}, "flashinfer is no choice of SGLang 0.5.2"),
        ({"a": {"options": {"x": {"no-such-flag": 1}}}}, "--no-such-flag"),
        ({"tp-size": {"low": 0.5, "high": 1.5}}, "a whole number"),
        ({"port": [30000, 30001]}, "--port is set by servetune"),
    ],
)
def test_anything_else_unknown_is_refused_by_name(mapping, words):
    with pytest.raises(SpecError, match=r"the search space 'inline' does not fit SGLang 0.5.2") as caught:
        resolve(mapping, "0.5.2")
    assert words in str(caught.value)


def test_fixed_flags_are_refused_by_name_too():
    with pytest.raises(SpecError, match=r"fixed: SGLang 0.5.9 has no flag --tp-sise; alternatives: --tp-size"):
        resolve({"page-size": [1]}, "0.5.9", {"tp-sise": 8})


def test_options_of_a_bundle():
    options = {
        "nccl": {"disable-custom-all-reduce": True},
        "pcie": {"env.SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"},
        "symm": {"enable-torch-symm-mem": True},
    }
    space, notes = resolve({"allreduce": {"options": options}}, "0.5.2")
    assert list(domains(space)["allreduce"].options) == ["nccl"]
    assert len(notes) == 2
    assert "'pcie' is dropped: env.SGLANG_ENABLE_PCIE_IPC_ALLREDUCE has no effect in SGLang 0.5.2" in notes[0]


def test_options_that_become_the_same_are_one():
    options = {
        "default": {},
        "off": {"cuda-graph-backend-prefill": "disabled"},
        "on": {"enable-piecewise-cuda-graph": True},
    }
    space, notes = resolve({"prefill": {"options": options}}, "0.5.9")
    assert list(domains(space)["prefill"].options) == ["default", "on"]
    assert any("'off' is dropped: it is the same as 'default' in this version" in note for note in notes)


def test_two_parameters_that_become_one_flag_are_refused():
    mapping = {"enable-piecewise-cuda-graph": [False, True], "cuda-graph-backend-prefill": ["disabled", "breakable"]}
    with pytest.raises(SpecError, match="set the same flag in this version, --cuda-graph-backend-prefill"):
        resolve(mapping, "0.5.15")
    with pytest.raises(SpecError, match="'cuda-graph-bs' and 'cuda-graph-bs-decode' set the same flag"):
        resolve({"cuda-graph-bs": ["1 2"]}, "0.5.23", {"cuda-graph-bs-decode": "1"})


def test_a_node_without_the_engines_rules_decides_about_values_itself():
    space, notes = resolve({"moe-a2a-backend": ["none", "flashinfer"]}, "0.5.6", engine_rules=False)
    assert domains(space)["moe-a2a-backend"] == CategoricalDomain(choices=("none", "flashinfer"))
    assert notes == []
    with pytest.raises(SpecError, match="no-such-flag"):
        resolve({"no-such-flag": ["a"]}, "0.5.6", engine_rules=False)


def test_without_a_version_nothing_is_changed():
    space, notes = resolve({"cuda-graph-max-bs": [1, 2], "no-such-flag": [1]}, None)
    assert list(domains(space)) == ["cuda-graph-max-bs", "no-such-flag"]
    assert "not known" in notes[0]
