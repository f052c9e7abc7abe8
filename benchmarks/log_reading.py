"""Speed, memory and robustness of the SGLang log reader: `python benchmarks/log_reading.py [speed|memory|fuzz|all]`.

speed   MB/s of CPU time, and of splitting the same text into lines: decode lines, the mix of a recorded load, container
        prefixes, floods, logs of failures (each repeated, in turn, in any order, each some time later than the last)
memory  a log of 2 GB: peak resident memory and MB/s
fuzz    10,000 broken logs (cut, interleaved, corrupted, huge lines): no exception, the same answer for any chunking
"""

from __future__ import annotations

import random
import re
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from servetune.engines.sglang.logs import SglangLogReader

RECORDINGS = Path(__file__).parents[1] / "tests" / "recordings"
FUZZED = 10_000
BIG_BYTES = 2 << 30
CHUNK = 1 << 20
DECODE = (
    b"[2026-02-21 10:03:53 TP0] Decode batch, #running-req: 32, #token: 9000, token usage: 0.01, cuda graph: True, "
    b"gen throughput (token/s): 2511.00, #queue-req: 0\n"
)
START = b"[2026-02-21 10:00:01] server_args=ServerArgs(model_path='/m', tp_size=8)\n"


def recorded() -> list[bytes]:
    return [
        path.read_bytes() for folder in ("cases", "cpu", "h200") for path in sorted((RECORDINGS / folder).glob("*.log"))
    ]


def load_mix() -> bytes:
    """What a recorded server printed from its ready line on, under load."""
    raw = (RECORDINGS / "h200" / "run2_m0.9_g256.log").read_bytes()
    begin = raw.index(b"\n", raw.index(b"fired up")) + 1
    return raw[begin : raw.index(b"SIGTERM received")].rsplit(b"\n", 1)[0] + b"\n"


def prefixed(body: bytes, prefix: bytes) -> bytes:
    return b"".join(prefix + line + b"\n" for line in body.split(b"\n")[:-1])


def floods() -> dict[str, bytes]:
    """Lines that repeat but for their numbers, as a server in trouble prints them by the million."""
    frames = b"".join(
        b'  File "/x/site-packages/sglang/srt/layers/module%d.py", line %d, in forward\n    return self.inner(x)\n'
        % (n, n)
        for n in range(14)
    )
    error = b"torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n\n"
    trace = b"[2026-02-21 10:05:0%d TP%d] Scheduler hit an exception: Traceback (most recent call last):\n"
    bar = b"Loading safetensors checkpoint shards: %3d%% Completed | %d/64 [00:%02d<01:00,  1.05s/it]\n"
    lines = {
        "NCCL debug lines": b"node1:1%02d:2%d [%d] NCCL INFO Channel 0%d/0 : 1[1] -> 2[2] via P2P/IPC/read\n",
        "NCCL warnings": b"node1:1%02d:2%d [%d] transport/net_ib.cc:%d NCCL WARN NET/IB : completion with status=12\n",
        "refused requests": b'[2026-02-21 10:%02d:%02d] INFO: 10.0.0.%d:4%03d - "POST /generate HTTP/1.1" 503 Busy\n',
    }
    made = {name: b"".join(line % (n % 60, n % 60, n, n) for n in range(200)) for name, line in lines.items()}
    made["progress bars"] = b"".join(bar % (n, n, n % 60) for n in range(64))
    made["tracebacks of 8 ranks"] = b"".join(trace % (n, n) + frames + error for n in range(8))
    return made


STAMP = re.compile(rb"(\d\d):(\d\d):(\d\d)(?=[ \]])")


def later(raw: bytes, seconds: int) -> bytes:
    """The same log, so many seconds later."""

    def moved(match: re.Match[bytes]) -> bytes:
        now = (int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3]) + seconds) % 86_400
        return b"%02d:%02d:%02d" % (now // 3600, now // 60 % 60, now % 60)

    return STAMP.sub(moved, raw)


def failures() -> dict[str, bytes]:
    """The recorded logs of failures."""
    paths = sorted((RECORDINGS / "cases").glob("*.log"))
    return {path.stem: path.read_bytes().rstrip(b"\n") + b"\n" for path in paths}


def repeated(body: bytes, total: int) -> bytes:
    return body * (total // len(body) + 1)


def crash_loops(total: int) -> Iterator[tuple[str, bytes]]:
    """Logs of servers that die and are started again."""
    logs = list(failures().values())
    trace = floods()["tracebacks of 8 ranks"]
    source = random.Random(0)
    count = total // (sum(map(len, logs)) // len(logs))
    yield "logs of failures in turn", repeated(b"".join(logs), total)
    yield "logs of failures in any order", b"".join(source.choice(logs) for _ in range(count))
    yield "in any order, each later", b"".join(later(source.choice(logs), 31 * at) for at in range(count))
    yield "in turn, each later", b"".join(later(logs[at % len(logs)], 31 * at) for at in range(count))
    yield "one of them, each later", b"".join(later(logs[5], 31 * at) for at in range(total // len(logs[5])))
    yield "tracebacks, each later", b"".join(later(trace, at) for at in range(total // len(trace)))
    yield "all recorded logs in turn", repeated(b"".join(recorded()), 2 * total)  # 2 MB of it are new


def feed(body: bytes, total: int) -> tuple[float, SglangLogReader]:
    """CPU seconds for `total` bytes made of copies of `body`, in pieces of 1 MiB."""
    piece = body * (CHUNK // len(body) + 1)
    reader = SglangLogReader({})
    reader.feed(START)
    before = time.process_time()
    for _ in range(total // len(piece) + 1):
        for start in range(0, len(piece), CHUNK):
            reader.feed(piece[start : start + CHUNK])
    reader.diagnose(None)
    return time.process_time() - before, reader


def told(name: str, text: bytes) -> float:
    """MB/s of reading a text; says it, and how fast it is split into lines."""
    reader = SglangLogReader({})
    before = time.process_time()
    for start in range(0, len(text), CHUNK):
        reader.feed(text[start : start + CHUNK])
    reader.diagnose(None)
    middle = time.process_time()
    for start in range(0, len(text), CHUNK):
        text[start : start + CHUNK].split(b"\n")
    split = time.process_time() - middle
    speed = len(text) / (middle - before) / 1e6
    print(f"{name:32} {speed:6.0f} MB/s  (split alone {len(text) / split / 1e6:.0f})")
    return speed


def speed(total: int = 200_000_000) -> None:
    bodies = {
        "decode lines": DECODE,
        "recorded load": load_mix(),
        "recorded load, Kubernetes": prefixed(load_mix(), b"2026-02-21T10:04:00.000000000Z stderr F "),
        "recorded load, docker compose": prefixed(load_mix(), b"sglang-1  | "),
    }
    for name, body in {**bodies, **floods()}.items():
        told(name, START + repeated(body, total))
    for name, text in crash_loops(total // 2):
        told(name, text)
    speeds = {name: told(name, repeated(log, total // 4)) for name, log in failures().items()}
    print(f"each of {len(speeds)} logs repeated: {min(speeds.values()):.0f} MB/s or more")


def memory(total: int = BIG_BYTES) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    spent, reader = feed(load_mix() + DECODE * 2000, total)
    reader.diagnose(None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{total / 2**30:.0f} GiB: peak {peak:.0f} MiB resident ({before:.0f} before), {total / spent / 1e6:.0f} MB/s"
    )
    assert peak < 200, f"{peak} MiB"


def broken(source: random.Random, logs: list[bytes]) -> Iterator[bytes]:
    """One broken log after another."""
    while True:
        lines = source.choice(logs)[:30_000].split(b"\n")
        for _ in range(source.randint(1, 5)):
            source.choice(BREAKAGES)(source, lines, logs)
        yield b"\n".join(lines)


def _cut(source: random.Random, lines: list[bytes], logs: list[bytes]) -> None:
    del lines[source.randint(0, len(lines)) :]
    if lines:
        lines[-1] = lines[-1][: source.randint(0, len(lines[-1]))]


def _interleave(source: random.Random, lines: list[bytes], logs: list[bytes]) -> None:
    others = source.choice(logs)[:8_000].split(b"\n")
    for other in others:
        lines.insert(source.randint(0, len(lines)), other)


def _corrupt(source: random.Random, lines: list[bytes], logs: list[bytes]) -> None:
    for _ in range(source.randint(1, 40)):
        if not lines:
            return
        index = source.randrange(len(lines))
        line = bytearray(lines[index])
        for _ in range(source.randint(1, 8)):
            line.insert(source.randint(0, len(line)), source.randrange(256))
        lines[index] = bytes(line)


def _huge(source: random.Random, lines: list[bytes], logs: list[bytes]) -> None:
    line = (source.choice(lines) if lines else b"x") or b"y"
    lines.insert(source.randint(0, len(lines)), line * source.randint(1, 300_000 // len(line) + 2))


def _shuffle(source: random.Random, lines: list[bytes], logs: list[bytes]) -> None:
    begin = source.randint(0, len(lines))
    part = lines[begin : begin + 30]
    source.shuffle(part)
    lines[begin : begin + 30] = part


def _repeat(source: random.Random, lines: list[bytes], logs: list[bytes]) -> None:
    begin = source.randint(0, len(lines))
    lines[begin:begin] = lines[begin : begin + 5] * source.randint(1, 50)


BREAKAGES = (_cut, _interleave, _corrupt, _huge, _shuffle, _repeat)


def check(raw: bytes, source: random.Random) -> None:
    """Raises when reading fails, or when another chunking gives another answer."""
    whole = SglangLogReader({})
    whole.feed(raw)
    pieces = SglangLogReader({})
    at = 0
    while at < len(raw):
        size = source.choice((1, 7, 100, 3000, 20_000, 90_000))
        pieces.feed(raw[at : at + size])
        at += size
        assert pieces.phase  # whoever asks has it read
        if source.random() < 0.003:
            pieces.facts(), pieces.warnings(), pieces.diagnose(None), pieces.last_line, pieces.decided
    answers = [(reader.facts(), reader.report(reader.diagnose(None)), _state(reader)) for reader in (whole, pieces)]
    for one, other in zip(*answers, strict=True):
        differing = {key: (str(one[key])[:300], str(other[key])[:300]) for key in one if one[key] != other[key]}
        assert not differing, differing


def _state(reader: SglangLogReader) -> dict[str, object]:
    return {"line": reader.last_line, "decided": reader.decided, "ready": reader.ready, "phase": reader.phase}


def fuzz(count: int = FUZZED, seed: int = 0) -> None:
    source = random.Random(seed)
    logs = broken(source, recorded())
    before = time.perf_counter()
    for _ in range(count):
        check(next(logs), source)
    print(f"{count} broken logs read twice in {time.perf_counter() - before:.0f} s: no exception, no difference")


def main() -> None:
    wanted = sys.argv[1] if len(sys.argv) > 1 else "all"
    for name, run in {"speed": speed, "memory": memory, "fuzz": fuzz}.items():
        if wanted in (name, "all"):
            run()


if __name__ == "__main__":
    main()
