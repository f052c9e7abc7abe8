"""Log filter, run as a program of its own: standard input to standard output, each secret replaced by `<NAME>`.

`python _redact.py NAME…` finds the values in its environment. It outlives the tuner (it ignores INT, TERM and HUP) and
ends with the last writer of its input. Standard library only: it starts in about 20 ms, without the package.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import signal
import sys
import urllib.parse
from collections.abc import Mapping

_CHUNK_BYTES = 65536


class Redactor:
    """Replaces secrets in a stream of bytes that may be cut anywhere. `secrets`: name → value (not empty)."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._names = {form: name for name, value in sorted(secrets.items(), reverse=True) for form in forms(value)}
        # Longest first: of two secrets that start alike, the longer one is meant.
        patterns = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(re.escape(form) for form in patterns))
        self._beginnings = {form[:length] for form in patterns for length in range(1, len(form))}
        self._longest = max(len(form) for form in patterns)
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """What may be written now. A tail that could be the beginning of a secret is held back."""
        data = self._held + chunk
        written: list[bytes] = []
        at = 0
        while True:
            held_from = self._first_beginning(data, at)
            match = self._pattern.search(data, at)
            if match is None or match.start() >= held_from:
                self._held = data[held_from:]
                return b"".join([*written, data[at:held_from]])
            written += [data[at : match.start()], self._shown(match)]
            at = match.end()

    def finish(self) -> bytes:
        """The rest, at the end of the stream."""
        rest, self._held = self._held, b""
        return self._pattern.sub(self._shown, rest)

    def _shown(self, match: re.Match[bytes]) -> bytes:
        return b"<" + self._names[match.group()].encode() + b">"

    def _first_beginning(self, data: bytes, at: int) -> int:
        for start in range(max(at, len(data) - self._longest + 1), len(data)):
            if data[start:] in self._beginnings:
                return start
        return len(data)


def forms(value: str) -> set[bytes]:
    """How a value may be written in a log: as it is, quoted for URL, shell, Python or JSON, or in Base64."""
    texts = {value, urllib.parse.quote(value), urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value)}
    texts |= {shlex.quote(value), repr(value)[1:-1], ascii(value)[1:-1]}
    texts |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    raw = os.fsencode(value)
    encoded = {base64.b64encode(raw).rstrip(b"="), base64.urlsafe_b64encode(raw).rstrip(b"=")}
    return {raw} | encoded | {text.encode("utf-8", "surrogateescape") for text in texts}


def main(names: list[str]) -> None:
    """Filter until the end of the input. Keeps reading when the output is full, so that the server never blocks."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    redactor = Redactor({name: os.environ[name] for name in names})
    while chunk := os.read(0, _CHUNK_BYTES):
        _write(redactor.feed(chunk))
    _write(redactor.finish())


def _write(data: bytes) -> None:
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:
        return  # a full disk loses these lines; the next ones are tried again


if __name__ == "__main__":
    main(sys.argv[1:])
