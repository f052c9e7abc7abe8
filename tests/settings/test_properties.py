"""What holds for every space: it is read back as written, and only declared values ever reach a command."""

from pathlib import Path

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from spaces import spaces

from servetune.core.errors import SpecError
from servetune.core.space import BundleDomain, CategoricalDomain, FloatDomain, IntDomain, same_value
from servetune.settings import load_space, load_study
from servetune.settings._adjust import fixing
from servetune.settings._document import node_of
from servetune.settings._problems import Problems


def written(space):
    """The mapping that a person would write for a space."""
    parameters = {}
    for parameter in space.parameters:
        entry = _domain(parameter.domain)
        if parameter.when.any_of:
            entry["when"] = {name: list(wanted) for name, wanted in parameter.when.any_of.items()}
        parameters[parameter.name] = entry
    return {"parameters": parameters, "fixed": dict(space.fixed)}


def _domain(domain):
    if isinstance(domain, CategoricalDomain):
        return {"values": list(domain.choices)}
    if isinstance(domain, BundleDomain):
        return {"options": {label: dict(option) for label, option in domain.options.items()}}
    entry = {"low": domain.low, "high": domain.high}
    if domain.log:
        entry["log"] = True
    elif domain.step is not None and domain.step != 1:
        entry["step"] = domain.step
    return entry


def points(space):
    """Points of the active branch, with values at the edges of ranges."""

    @st.composite
    def draw_point(draw):
        point = {}
        for parameter in space.parameters:
            if space.active(parameter, point):
                point[parameter.name] = draw(st.sampled_from(values_of(parameter.domain)))
        return point

    return draw_point()


def values_of(domain):
    if isinstance(domain, CategoricalDomain):
        return list(domain.choices)
    return list(domain.options) if isinstance(domain, BundleDomain) else [domain.low, domain.high]


def accepted(space):
    """Bundles drawn at random may repeat an option or a flag, which a file must not."""
    flags = [
        flag
        for parameter in space.parameters
        if isinstance(parameter.domain, BundleDomain)
        for flag in {flag for option in parameter.domain.options.values() for flag in option}
    ]
    return len(flags) == len(set(flags))


@given(spaces().filter(accepted))
@settings(max_examples=60, deadline=None)
def test_a_space_written_as_yaml_is_read_as_the_same(tmp_path_factory, space):
    folder = tmp_path_factory.getbasetemp()
    (folder / "made.yaml").write_text(yaml.safe_dump(written(space), sort_keys=False))
    read = load_space("made", folder)
    assert read == space.model_copy(update={"name": "made"})
    assert read.fingerprint() == space.fingerprint()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_expanding_gives_declared_flags_and_values_only(data):
    space = load_space(written(data.draw(spaces().filter(accepted))), Path())
    point = data.draw(points(space))
    allowed = {"tp-size": [8]}
    for parameter in space.parameters:
        if isinstance(parameter.domain, BundleDomain):
            for option in parameter.domain.options.values():
                for flag, value in option.items():
                    allowed.setdefault(flag, []).append(value)
        else:
            allowed[parameter.name] = parameter.domain
    for flag, value in space.expand(point).items():
        assert value is not None
        assert _is_declared(value, allowed[flag])


def _is_declared(value, declared):
    if isinstance(declared, IntDomain | FloatDomain):
        return declared.low <= value <= declared.high
    choices = declared if isinstance(declared, list) else declared.choices
    return any(same_value(value, choice) for choice in choices)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_parameter_is_sampled_only_under_its_condition(data):
    space = load_space(written(data.draw(spaces().filter(accepted))), Path())
    point = data.draw(points(space))
    for parameter in space.parameters:
        wanted = [
            any(same_value(point.get(name), value) for value in values)
            for name, values in parameter.when.any_of.items()
        ]
        assert (parameter.name in point) == all(wanted)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_fixing_a_parameter_leaves_exactly_the_points_that_have_its_value(data):
    space = load_space(written(data.draw(spaces().filter(accepted))), Path())
    parameter = data.draw(st.sampled_from(space.parameters))
    value = data.draw(st.sampled_from([v for v in values_of(parameter.domain) if v is not None] or [None]))
    if value is None or parameter.when.any_of:
        return
    fixed = _fixing(space, {parameter.name: value})
    point = data.draw(points(fixed))
    assert fixed.expand(point) == space.expand({parameter.name: value, **point})


def _fixing(space, flags):
    problems = Problems("test")
    fixed = fixing(space, flags, node_of(flags, "test"), problems)
    problems.raise_if_any()
    return fixed


def refused(load, path, otherwise):
    """The one error that a file may give; `otherwise` when it is accepted."""
    try:
        load(path)
    except SpecError as error:
        return str(error)
    return otherwise


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_a_study_or_one_error(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(data)
    assert str(path) in refused(load_study, path, str(path))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "study",
                        "engine",
                        "model",
                        "search_space",
                        "parameters",
                        "base",
                        "narrow",
                        "when",
                        "values",
                        "options",
                        "budget",
                        "trials",
                        "workload",
                        "concurrency",
                        "hints",
                        "fixed",
                        "baseline",
                        "env",
                        "from_env",
                        "node",
                        "name",
                        "sampler",
                        "seed",
                        "objective",
                        "weights",
                        "low",
                        "high",
                        "a",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=25,
    )
)
@settings(max_examples=60, deadline=None)
def test_any_tree_is_a_study_or_one_error(tmp_path_factory, tree):
    path = tmp_path_factory.getbasetemp() / "tree.yaml"
    path.write_text(yaml.safe_dump(tree))
    for load in (load_study, lambda path: load_space(path.name, path.parent)):
        assert "tree.yaml" in refused(load, path, "tree.yaml")
