"""SGLang commands for Hypothesis: flags of a release with values that it accepts."""

from hypothesis import strategies as st

from servetune.engines.sglang.capabilities import RESERVED, capabilities_of

RELEASES = ["0.5.2", "0.5.6", "0.5.9", "0.5.12", "0.5.13", "0.5.15", "0.5.18", "0.5.20", "0.5.23"]

texts = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=8).filter(str.strip)


@st.composite
def assignments(draw, version):
    """Up to eight flags of the release; a list is written as in a study file, its words joined by spaces."""
    found = {}
    flags = [
        flag for flag in capabilities_of(version).flags.values() if flag.kind not in ("ignored", "removed", "json")
    ]
    usable = [flag for flag in flags if flag.name not in RESERVED]
    for flag in draw(st.lists(st.sampled_from(usable), max_size=8, unique_by=lambda flag: flag.name)):
        found[flag.name] = draw(_values(flag))
    return found


def _values(flag):
    if not flag.valued:
        return st.booleans()
    if flag.nargs in ("+", "*"):
        return st.lists(_one(flag, st.text("abc", min_size=1)), min_size=1, max_size=4).map(
            lambda words: " ".join(map(str, words))
        )
    return _one(flag, texts)


def _one(flag, words):
    if flag.choices:
        return st.sampled_from(flag.choices)
    if flag.kind in ("int", "human_int"):
        return st.integers(-1, 99_999)
    return st.floats(0, 1000) if flag.kind == "float" else words
