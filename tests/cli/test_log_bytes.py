"""Logs as they lie in archives: packed, cut, in UTF-16, or no text at all."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from engines.sglang.test_diagnose import servetune

from servetune.cli._log_bytes import LogBytes, UnreadableLogError
from servetune.cli.diagnose import diagnose_text

LOG = (Path(__file__).parents[1] / "recordings" / "cases" / "kv_new_guard_minimum.log").read_bytes()
PACKED: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}


class Trickle(io.RawIOBase):
    """Gives a few bytes at a time, as a pipe may."""

    def __init__(self, raw: bytes, size: int) -> None:
        self._raw, self._size = io.BytesIO(raw), size

    def read(self, size: int = -1) -> bytes:
        return self._raw.read(self._size)


def unpacked(raw: bytes) -> bytes:
    return b"".join(LogBytes(io.BytesIO(raw)))


@pytest.mark.parametrize("packed", PACKED.values(), ids=PACKED)
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_packed_logs_are_unpacked_whatever_the_pieces(packed: Callable[[bytes], bytes], size: int) -> None:
    raw = packed(LOG) + packed(b"more\n") + packed(b"")
    assert b"".join(LogBytes(Trickle(raw, size))) == LOG + b"more\n"  # type: ignore[arg-type]


@pytest.mark.parametrize("packed", PACKED.values(), ids=PACKED)
def test_a_packed_log_is_diagnosed_from_a_file_and_from_stdin(packed: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(packed(LOG))
    done = servetune(str(path)) if packed is bz2.compress else servetune("-", stdin=packed(LOG))
    assert done.returncode == 0
    assert done.stdout.startswith(b"kv_budget")
    assert diagnose_text(io.BytesIO(packed(LOG))) == diagnose_text(io.BytesIO(LOG))


@pytest.mark.parametrize("name", PACKED)
def test_packed_data_that_end_early_are_used_and_said_to_be_cut(name: str) -> None:
    whole = PACKED[name](LOG * 2000)
    source = LogBytes(io.BytesIO(whole[: len(whole) * 9 // 10]))
    text = b"".join(source)
    assert source.cut == name
    assert (LOG * 2000).startswith(text)


def test_a_warning_says_that_packed_data_end_early() -> None:
    done = servetune("-", stdin=gzip.compress(LOG)[:-4])
    assert done.stderr == b"the gzip data of stdin end early; this is what they hold\n"
    assert done.stdout.startswith(b"kv_budget")


@pytest.mark.parametrize("name", PACKED)
def test_damaged_data_are_one_error(name: str) -> None:
    whole = bytearray(PACKED[name](bytes(range(256)) * 4000))
    middle = len(whole) // 2
    whole[middle : middle + 40] = bytes(byte ^ 0x5A for byte in whole[middle : middle + 40])
    with pytest.raises(UnreadableLogError, match=f"cannot be unpacked as {name}"):
        unpacked(bytes(whole))


@pytest.mark.parametrize("name", PACKED)
def test_what_unpacks_to_much_is_read_in_bounded_memory(name: str) -> None:
    whole = PACKED[name](b"x" * 99 + b"\n" + b"y\n" * (20 << 19))
    tracemalloc.start()
    try:
        total = sum(len(chunk) for chunk in LogBytes(io.BytesIO(whole)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 100 + (20 << 20)
    assert peak < 16 << 20


def zipped(raw: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("server.log", raw)
    return archive.getvalue()


OTHER = {
    "zstd": b"\x28\xb5\x2f\xfd\x04\x00" + bytes(50),
    "zip": zipped(LOG),
    "binary": b"\x7fELF\x02\x01\x01" + bytes(2000) + b"\nGLIBC_2.4\n",
}


@pytest.mark.parametrize(("name", "words"), [("zstd", ()), ("zip", ("--json",)), ("binary", ())])
def test_other_packed_or_binary_data_are_bad_input(name: str, words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(OTHER[name])
    done = servetune(str(path), *words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(f"error: the file '{path}' is ".encode())
    assert name.encode() in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
@pytest.mark.parametrize("size", [1, 3, 1 << 20])
def test_text_with_a_byte_order_mark_is_decoded(encoding: str, size: int) -> None:
    raw = LOG.decode().encode(encoding)
    if encoding in ("utf-16-le", "utf-16-be"):
        raw = "\ufeff".encode(encoding) + raw
    assert b"".join(LogBytes(Trickle(raw, size))) == LOG  # type: ignore[arg-type]
    assert diagnose_text(io.BytesIO(gzip.compress(raw)))["class"] == "kv_budget"


def test_nul_bytes_in_a_log_of_a_server_do_no_harm() -> None:
    done = servetune("-", stdin=bytes(4096) + b"\n" + LOG)
    assert done.stdout.startswith(b"kv_budget")
