"""Search spaces: forms, conditions, and what a study does to a named one."""

from pathlib import Path

import pytest

from servetune.core.errors import SpecError
from servetune.core.space import BundleDomain, CategoricalDomain, FloatDomain, IntDomain
from servetune.settings import load_space, load_study

BASE = """
parameters:
  moe-a2a-backend: [none, flashinfer, deepep]
  deepep-mode: {values: [auto, normal], when: {moe-a2a-backend: deepep}}
  allreduce:
    options:
      nccl: {disable-custom-all-reduce: true}
      tree: {disable-custom-all-reduce: true, env.NCCL_ALGO: Tree}
      custom: {}
  env.NCCL_PROTO: {values: [null, LL], when: {allreduce: [nccl, tree]}}
  schedule-policy: {values: [fcfs, lpm], when: {disable-custom-all-reduce: true}}
  mem-fraction-static: {low: 0.7, high: 0.9, step: 0.05}
hints:
  - {moe-a2a-backend: deepep, deepep-mode: normal}
  - {allreduce: tree, mem-fraction-static: 0.9}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "base.yaml").write_text(BASE)
    return tmp_path


def names(space):
    return [parameter.name for parameter in space.parameters]


def domain(space, name):
    return next(parameter.domain for parameter in space.parameters if parameter.name == name)


def adjusted(folder, **changes):
    return load_space({"base": "base", **changes}, folder)


def test_forms():
    space = load_space(
        {
            "a": ["x", None, True, 1],
            "b": {"low": 1, "high": 9, "step": 2},
            "c": {"low": 1, "high": 512, "log": True},
            "d": {"low": 0.5, "high": 1},
            "e": {"options": {"on": {"f": 1, "env.G": "h"}, "off": {"f": None}}},
        },
        Path(),
    )
    assert [parameter.domain for parameter in space.parameters] == [
        CategoricalDomain(choices=("x", None, True, 1)),
        IntDomain(low=1, high=9, step=2),
        IntDomain(low=1, high=512, log=True),
        FloatDomain(low=0.5, high=1),
        BundleDomain(options={"on": {"f": 1, "env.G": "h"}, "off": {"f": None}}),
    ]


def test_a_named_space_beside_the_study_comes_first(folder):
    (folder / "simulated.yaml").write_text("parameters: {page-size: [1]}\n")
    assert names(load_space("simulated", folder)) == ["page-size"]
    assert "allreduce" in names(load_space("simulated", folder / "elsewhere"))


def test_spaces_of_the_neighbouring_folder(tmp_path):
    (tmp_path / "search_spaces").mkdir()
    (tmp_path / "search_spaces" / "mine.yaml").write_text("parameters: {page-size: [1]}\n")
    assert names(load_space("mine", tmp_path / "studies")) == ["page-size"]


def test_narrowing_keeps_the_order_and_drops_what_can_no_longer_be(folder):
    space = adjusted(
        folder, narrow={"moe-a2a-backend": ["none", "flashinfer"], "mem-fraction-static": {"low": 0.8, "high": 0.9}}
    )
    assert "deepep-mode" not in names(space)
    assert domain(space, "mem-fraction-static") == FloatDomain(low=0.8, high=0.9)
    assert space.hints == ({"allreduce": "tree", "mem-fraction-static": 0.9},)


def test_a_hint_outside_the_narrowed_range_is_gone(folder):
    space = adjusted(folder, narrow={"mem-fraction-static": {"low": 0.7, "high": 0.8}})
    assert space.hints == ({"moe-a2a-backend": "deepep", "deepep-mode": "normal"},)


def test_fixing_a_flag_decides_conditions(folder):
    assert "deepep-mode" not in names(adjusted(folder, fix={"moe-a2a-backend": "none"}))
    fixed = adjusted(folder, fix={"moe-a2a-backend": "deepep"})
    assert fixed.fixed == {"moe-a2a-backend": "deepep"}
    assert next(p for p in fixed.parameters if p.name == "deepep-mode").when.any_of == {}


def test_fixing_a_bundle_sets_its_flags(folder):
    space = adjusted(folder, fix={"allreduce": "tree"})
    assert space.fixed == {"disable-custom-all-reduce": True, "env.NCCL_ALGO": "Tree"}
    assert {"env.NCCL_PROTO", "schedule-policy"} <= set(names(space))
    assert space.active(next(p for p in space.parameters if p.name == "schedule-policy"), {})
    assert not {"env.NCCL_PROTO", "schedule-policy"} & set(names(adjusted(folder, fix={"allreduce": "custom"})))


def test_dropping_leaves_the_flag_out(folder):
    space = adjusted(folder, drop=["allreduce"])
    assert not {"allreduce", "env.NCCL_PROTO", "schedule-policy"} & set(names(space))


def test_extending_may_depend_on_the_base(folder):
    space = adjusted(folder, extend={"page-size": {"values": [1, 16], "when": {"moe-a2a-backend": ["none"]}}})
    assert names(space)[-1] == "page-size"


def test_a_space_may_build_on_another(folder):
    (folder / "mine.yaml").write_text("base: base\ndrop: [moe-a2a-backend]\n")
    space = load_space({"base": "mine", "fix": {"allreduce": "nccl"}}, folder)
    assert names(space) == ["env.NCCL_PROTO", "schedule-policy", "mem-fraction-static"]


def test_what_a_study_fixes_is_not_sampled(folder):
    (folder / "study.yaml").write_text(
        "study: s\nengine: {model: /m}\nsearch_space: base\nfixed: {moe-a2a-backend: none, allreduce: nccl}\n"
    )
    space = load_study(folder / "study.yaml").space
    assert space.fixed == {"moe-a2a-backend": "none", "disable-custom-all-reduce": True}
    assert names(space) == ["env.NCCL_PROTO", "schedule-policy", "mem-fraction-static"]


def test_needs():
    mapping = {
        "draft": {"values": [1, 2], "needs": "draft-model"},
        "depth": {"values": [3], "when": {"draft": [1]}},
    }
    assert names(load_space({**mapping, "page-size": [1]}, Path())) == ["page-size"]
    assert names(load_space(mapping, Path(), {"draft-model": "/d"})) == ["draft", "depth"]


def test_a_bundle_may_leave_out_a_fixed_flag(tmp_path):
    (tmp_path / "study.yaml").write_text(
        "study: s\nengine: {model: /m}\nfixed: {draft-model: /d}\n"
        'search_space: {draft: {options: {"off": {draft-model: null}, short: {draft-steps: 1}}}}\n'
    )
    space = load_study(tmp_path / "study.yaml").space
    assert space.expand({"draft": "off"}) == {}
    assert space.expand({"draft": "short"}) == {"draft-model": "/d", "draft-steps": 1}


def test_the_name_of_a_flag_may_be_quoted_text_that_yaml_would_read_otherwise():
    space = load_space({"parameters": {"a": ["null", "8", "true"]}}, Path())
    assert space.parameters[0].domain == CategoricalDomain(choices=("null", "8", "true"))


def test_values_of_other_types_are_no_study(tmp_path):
    with pytest.raises(SpecError, match="type set"):
        load_space({"a": {1, 2}}, tmp_path)
