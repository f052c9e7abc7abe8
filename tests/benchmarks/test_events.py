"""Server-sent events at any split, with any line end."""

from hypothesis import given
from hypothesis import strategies as st

from servetune.benchmarks._events import EventSplitter, data_of

text = st.text(st.characters(exclude_characters="\r\n"), min_size=1, max_size=40)


@given(st.lists(text, max_size=10), st.sampled_from([b"\n", b"\r\n"]), st.lists(st.integers(0, 5_000), max_size=40))
def test_events_at_any_split(texts, line_end, cuts):
    raw = b"".join(b"data: " + item.encode() + line_end * 2 for item in texts)
    splitter, found, begin = EventSplitter(), [], 0
    for end in [*sorted({cut % (len(raw) + 1) for cut in cuts}), len(raw)]:
        found += splitter.feed(raw[begin:end])
        begin = end
    assert found == [item.encode() for item in texts]
    assert splitter.held == b""


def test_comments_and_other_fields_are_dropped_and_data_lines_joined():
    assert EventSplitter().feed(b": ping\n\nevent: token\ndata: a\ndata:b\nid: 3\n\n") == [b"a\nb"]


def test_data_of_an_event_without_data_is_empty():
    assert data_of(b"retry: 10") == b""
