"""The answer reader gives the same body however the bytes are cut."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servetune.benchmarks._http import AnswerReader, MalformedAnswerError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def chunked(pieces: list[bytes]) -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


def read(raw: bytes, cuts: list[int]) -> tuple[bytes, AnswerReader]:
    reader, body, begin = AnswerReader(), b"", 0
    for end in [*sorted({cut % (len(raw) + 1) for cut in cuts}), len(raw)]:
        body += reader.feed(raw[begin:end]) if end > begin else b""
        begin = end
    return body, reader


pieces = st.lists(st.binary(min_size=1, max_size=60), max_size=8)
cuts = st.lists(st.integers(0, 10_000), max_size=30)


@given(pieces, cuts)
def test_chunked_body_at_any_split(pieces, cuts):
    body, reader = read(chunked(pieces), cuts)
    assert body == b"".join(pieces)
    assert reader.complete
    assert reader.status == 200
    assert reader.keep_alive


@given(pieces)
def test_chunked_body_byte_by_byte(pieces):
    raw = chunked(pieces)
    body, reader = read(raw, list(range(len(raw))))
    assert body == b"".join(pieces)
    assert reader.complete


@given(st.binary(max_size=200), cuts)
def test_body_of_known_length(content, cuts):
    body, reader = read(HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content, cuts)
    assert (body, reader.complete) == (content, True)


@given(st.binary(max_size=200), cuts)
def test_body_that_ends_with_the_connection(content, cuts):
    body, reader = read(HEAD + b"\r\n" + content, cuts)
    assert (body, reader.complete) == (content, False)
    assert reader.end_of_input()
    assert reader.complete
    assert not reader.keep_alive


@given(st.binary(max_size=500), cuts)
def test_gzip_is_read_although_it_was_declined(content, cuts):
    packed = gzip.compress(content)
    body, reader = read(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed, cuts)
    assert (body, reader.complete) == (content, True)


def test_interim_answers_chunk_extensions_and_trailers_are_skipped():
    raw = b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    raw += b"3;name=value\r\nabc\r\n0\r\nX-Trailer: 1\r\n\r\n"
    body, reader = read(raw, [])
    assert (body, reader.complete, reader.excess) == (b"abc", True, b"")


def test_bytes_after_the_answer_are_kept_apart():
    body, reader = read(chunked([b"abc"]) + b"HTTP/1.1 200", [])
    assert (body, reader.excess) == (b"abc", b"HTTP/1.1 200")


def test_border_is_known_only_between_chunks():
    reader = AnswerReader()
    raw = chunked([b"abc", b"de"])
    border = raw.index(b"2\r\nde")
    reader.feed(raw[:border])
    assert reader.at_border
    reader.feed(raw[border : border + 1])
    assert not reader.at_border
    reader.feed(raw[border + 1 :])
    assert not reader.at_border


def test_cut_answer_is_not_complete():
    _, reader = read(chunked([b"abc", b"de"])[:-7], [])
    assert not reader.end_of_input()


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",
    ],
)
def test_what_is_no_answer_is_refused(raw):
    with pytest.raises(MalformedAnswerError):
        read(raw, [])
