"""Search spaces and assignments for Hypothesis."""

from hypothesis import strategies as st

from servetune.core.space import (
    BundleDomain,
    CategoricalDomain,
    Condition,
    FloatDomain,
    IntDomain,
    Parameter,
    SearchSpace,
)

words = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=6)
texts = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=20)
values = st.one_of(st.booleans(), st.integers(-10, 10_000), st.floats(0.01, 10, allow_nan=False), words)


@st.composite
def domains(draw):
    kind = draw(st.sampled_from(["categorical", "int", "log int", "float", "stepped float", "bundle"]))
    low = draw(st.integers(1, 100))
    match kind:
        case "categorical":
            choices = draw(
                st.lists(st.one_of(st.none(), words, st.integers(2, 99)), min_size=1, max_size=5, unique=True)
            )
            return CategoricalDomain(choices=tuple(choices))
        case "int":
            step = draw(st.integers(1, 5))
            return IntDomain(low=low, high=low + step * draw(st.integers(1, 20)), step=step)
        case "log int":
            return IntDomain(low=low, high=low + draw(st.integers(1, 500)), log=True)
        case "float":
            return FloatDomain(low=low / 100, high=low / 100 + draw(st.floats(0.1, 2)))
        case "stepped float":
            return FloatDomain(low=0.7, high=0.97, step=0.01)
    labels = draw(st.lists(words, min_size=1, max_size=4, unique=True))
    return BundleDomain(options={label: {f"of-{label}": draw(values)} for label in labels})


@st.composite
def spaces(draw):
    """Up to six parameters, some of them active only under an earlier one's value."""
    parameters: list[Parameter] = []
    for index in range(draw(st.integers(1, 6))):
        when = Condition()
        categorical = [p for p in parameters if isinstance(p.domain, CategoricalDomain)]
        if categorical and draw(st.booleans()):
            earlier = draw(st.sampled_from(categorical))
            when = Condition(any_of={earlier.name: (draw(st.sampled_from(earlier.domain.choices)),)})
        parameters.append(Parameter(name=f"p{index}", domain=draw(domains()), when=when))
    return SearchSpace(name="made", parameters=tuple(parameters), fixed={"tp-size": 8})
