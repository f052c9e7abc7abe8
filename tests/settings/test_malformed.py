"""Each malformed file gives one SpecError that names its place and says what is wrong. Line 1 says what is expected:

# expect: LINE:COLUMN | words | words
"""

import re
from pathlib import Path

import pytest

from servetune.core.errors import SpecError
from servetune.settings import load_space, load_study

FOLDER = Path(__file__).parent / "malformed"
FILES = sorted(FOLDER.glob("*.yaml"))


def test_there_are_enough():
    assert len(FILES) >= 40


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_one_clear_error(path):
    place, *words = expected(path)
    with pytest.raises(SpecError) as caught:
        load_study(path) if path.stem.startswith("study") else load_space(path.stem, FOLDER)
    text = str(caught.value)
    assert caught.value.exit_status == 2
    assert re.search(rf"{re.escape(path.name)}:{place}\b", text), text
    for word in words:
        assert word in text
    if "problems" not in words[0]:
        assert "\n" not in text, "one problem, one line"


def expected(path):
    first = path.read_bytes().split(b"\n", 1)[0].decode()
    return [part.strip() for part in first.removeprefix("# expect: ").split(" | ")]
