"""Thin the log of a server under load: nothing is changed, lines that repeat are left out.

    python thin.py server.log > trial-0.log

Of batches, requests and readings the first FIRST lines are kept, then each EVERY-th; of outputs that nobody waits for
any more the first FIRST alone. Start-up, warnings, tracebacks and the end stay whole.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

FIRST, EVERY = 25, 60
REPEAT = {b"Prefill batch": EVERY, b"Decode batch": EVERY, b'"POST /generate': EVERY, b'"GET /v1/loads': EVERY}
REPEAT[b"Received output for rid="] = sys.maxsize


def thinned(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines that are kept."""
    seen: Counter[bytes] = Counter()
    for line in lines:
        kind = next((kind for kind in REPEAT if kind in line), None)
        if kind is not None:
            seen[kind] += 1
        if kind is None or seen[kind] <= FIRST or seen[kind] % REPEAT[kind] == 0:
            yield line


if __name__ == "__main__":
    sys.stdout.buffer.writelines(thinned(Path(sys.argv[1]).read_bytes().splitlines(keepends=True)))
