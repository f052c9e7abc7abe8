"""Every space that comes with servetune: read, explained, and usable with every release."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.core.engine import EngineChoice
from servetune.core.node import NodeFacts
from servetune.core.space import BundleDomain, CategoricalDomain
from servetune.engines.sglang import create
from servetune.engines.sglang.capabilities import capabilities_of, releases_with, violations
from servetune.settings import load_space

FOLDER = Path(__file__).parents[2] / "search_spaces"
SCENARIOS = Path(__file__).parents[2] / "src" / "servetune" / "simulation" / "scenarios"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
DRAFT = {"speculative-algorithm": "EAGLE3", "speculative-draft-model-path": "/draft"}
RELEASES = ["0.5.2", "0.5.6", "0.5.9", "0.5.12", "0.5.13", "0.5.15", "0.5.18", "0.5.20", "0.5.23"]
ALLREDUCE = {"nccl", "nccl-tree", "custom", "mscclpp", "torch-symm-mem", "nccl-symm-mem", "nvls", "flashinfer-fusion"}


def whole(name):
    space = load_space(name, FOLDER, DRAFT)
    return space.model_copy(update={"fixed": {**space.fixed, "tp-size": 8, **DRAFT}})


def resolved(name, version):
    facts = NodeFacts(node="x", simulated=True, gpu_names=("GPU",) * 8, engine_version=version)
    return create(EngineChoice(model="/m"), {}).resolve_space(whole(name), facts)


def flags_of(space):
    return {
        flag
        for parameter in space.parameters
        for flag in (
            [parameter.name]
            if not isinstance(parameter.domain, BundleDomain)
            else [flag for option in parameter.domain.options.values() for flag in option]
        )
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_says_why_in_one_line(name):
    for parameter in whole(name).parameters:
        assert 10 < len(parameter.why) <= 120, parameter.name
        assert "\n" not in parameter.why


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_is_and_gives_starting_points(name):
    assert yaml.safe_load((FOLDER / f"{name}.yaml").read_text())["description"]
    assert whole(name).name == name
    assert whole(name).hints


@pytest.mark.parametrize("name", NAMES)
def test_every_flag_exists_in_some_release(name):
    newest = capabilities_of("0.5.23").environment
    for flag in flags_of(whole(name)):
        variable = flag.removeprefix("env.")
        known = variable in newest or variable.startswith("NCCL_") if flag.startswith("env.") else releases_with(flag)
        assert known, flag


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("name", NAMES)
def test_every_release_can_use_it(name, version):
    space, notes = resolved(name, version)
    assert len(space.parameters) >= 6
    assert len(notes) == len(set(notes))
    assert all(len(note) < 300 for note in notes)
    capabilities = capabilities_of(version)
    for hint in space.hints:
        point = {name: value for name, value in hint.items() if name in {p.name for p in space.parameters}}
        assert violations(space.expand(point), capabilities) == []


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_whatever_is_sampled_is_a_command_of_that_release(name, version, data):
    space, _ = resolved_once(name, version)
    point = {}
    for parameter in space.parameters:
        if space.active(parameter, point):
            domain = parameter.domain
            if isinstance(domain, CategoricalDomain | BundleDomain):
                known = domain.choices if isinstance(domain, CategoricalDomain) else list(domain.options)
                point[parameter.name] = data.draw(st.sampled_from(known))
            else:
                point[parameter.name] = data.draw(st.sampled_from([domain.low, domain.high]))
    assert violations(space.expand(point), capabilities_of(version)) == []


_resolved = {}


def resolved_once(name, version):
    if (name, version) not in _resolved:
        _resolved[name, version] = resolved(name, version)
    return _resolved[name, version]


def test_the_options_of_both_journeys():
    domains = {parameter.name: parameter.domain for parameter in whole("sglang-moe").parameters}
    assert ALLREDUCE | {"pcie-ipc"} <= set(domains["allreduce"].options)
    assert {"none", "flashinfer", "deepep"} <= set(domains["moe-a2a-backend"].choices)
    assert {"auto", "triton", "flashinfer_cutlass", "flashinfer_trtllm"} <= set(domains["moe-runner-backend"].choices)
    assert "piecewise" in domains["prefill-graph"].options
    assert domains["mem-fraction-static"].low <= 0.78
    assert domains["mem-fraction-static"].high >= 0.92
    names = {"enable-single-batch-overlap", "enable-two-batch-overlap", "layout", "speculative", "kv-cache-dtype"}
    assert names <= domains.keys()


def test_speculative_decoding_needs_a_draft_model():
    names = {parameter.name for parameter in load_space("sglang-moe", FOLDER).parameters}
    assert not {"speculative", "speculative-attention-mode"} & names


#: Fitted to studies of their own spaces, which `servetune simulate --space` takes.
FITTED = {"moe4b-bf16-1x-h200": ("h200-moe", "h200-streaming")}


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_simulated_space_speaks_of_what_scenarios_know(path):
    known = yaml.safe_load(path.read_text())["flags"]
    if path.stem in FITTED:
        files = [FOLDER.parent / "studies" / f"{name}.yaml" for name in FITTED[path.stem]]
        studies = [yaml.safe_load(file.read_text()) for file in files]
        said = {flag for study in studies for flag in (*study["search_space"]["parameters"], *study["fixed"])}
        assert known.keys() <= {flag.removesuffix("-decode") for flag in said}
    else:
        assert flags_of(load_space("simulated", FOLDER)) == known.keys()
