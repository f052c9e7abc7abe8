"""The text of simulated answers: cut anywhere, endless, and recognisably sound or not."""

import itertools
import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from servetune.simulation.passage import nonsense, plausible

PLAUSIBLE, NONSENSE = plausible(), nonsense()


@given(st.integers(0, 2000), st.lists(st.integers(1, 500), min_size=1, max_size=5))
def test_pieces_join_to_the_whole(first, steps):
    ends = [first]
    for step in steps:
        ends.append(ends[-1] + step)
    for passage in (PLAUSIBLE, NONSENSE):
        texts = [passage.text(begin, end) for begin, end in itertools.pairwise(ends)]
        assert b"".join(texts) == passage.text(first, ends[-1])
        ids = json.loads(b"[%b]" % passage.ids(first, ends[-1]))
        assert len(ids) == ends[-1] - first
        assert json.loads(b'"%b"' % passage.text(first, ends[-1])).isascii()


def test_ids_and_words_go_together():
    assert PLAUSIBLE.period > 300
    for token in range(PLAUSIBLE.period):
        same = PLAUSIBLE.text(token, token + 1) == PLAUSIBLE.text(
            token + PLAUSIBLE.period, token + PLAUSIBLE.period + 1
        )
        assert same


def test_sound_answers_vary_and_nonsense_repeats_one_token():
    for start in range(0, PLAUSIBLE.period, 7):
        ids = json.loads(b"[%b]" % PLAUSIBLE.ids(start, start + 32))
        assert Counter(ids).most_common(1)[0][1] < 16
    assert NONSENSE.text(5, 13) == b"!!!!!!!!"
    assert set(json.loads(b"[%b]" % NONSENSE.ids(0, 32))) == {0}
