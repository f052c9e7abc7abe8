"""What a load generator costs and whether it is right: servetune against others on a server of exactly known rate.

    python benchmarks/load/compare.py [--streams 1024] [--itl-s 0.05] [--repeat 1] [--only NAME…]

Each tool holds the same streams against a fresh server; the server writes down when it sent what. CPU is that of the
tool's whole process tree. Columns: CPU per streamed event, less that of the same tool with a handful of requests
(start, imports, tokenizer), and as a multiple of servetune's; CPU per event with all that, and as a multiple; events
per second that the server got rid of in the middle of the run; what the tool says it measured. A client that is behind
reads several events at once, which makes each cheaper: see how many it served.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from fakes.streaming.process import Stamps, exact_rate_server  # noqa: E402

CACHE = Path.home() / ".cache" / "servetune"
OTHERS = Path(os.environ.get("SERVETUNE_BENCH_LOAD_DIR", CACHE / "bench-load"))
SGLANG = Path(os.environ.get("SERVETUNE_SGLANG_CPU_DIR", CACHE / "sglang-cpu")) / "current"
INPUT_TOKENS, OUTPUT_TOKENS = 64, 128
LONGEST_S = 420
FEW = 8  # requests of the run that stands for start-up


@dataclass(frozen=True)
class Load:
    url: str
    streams: int
    requests: int
    folder: Path


@dataclass(frozen=True)
class Tool:
    name: str
    needs: Path
    command: Callable[[Load], list[str]]
    claimed: Callable[[Load, str], float | None]  # output tokens per second, by the tool's own report
    environment: dict[str, str] | None = None


def ours(load: Load) -> list[str]:
    arguments = f"--concurrency {load.streams} --requests {max(1, load.requests - load.streams)} --limit-s {LONGEST_S}"
    lengths = f"--input-tokens {INPUT_TOKENS} --output-tokens {OUTPUT_TOKENS}"
    return [sys.executable, "-m", "servetune", "bench", load.url, *arguments.split(), *lengths.split(), "--json"]


def plain_aiohttp(load: Load) -> list[str]:
    program = str(ROOT / "tests" / "benchmarks" / "plain_aiohttp.py")
    seconds = "14" if load.requests > FEW else "0.1"
    return [sys.executable, program, load.url, str(load.streams if load.requests > FEW else 1), seconds, "json"]


def bench_serving(load: Load) -> list[str]:
    lengths = f"--random-input-len {INPUT_TOKENS} --random-output-len {OUTPUT_TOKENS} --random-range-ratio 1.0"
    counts = f"--num-prompts {load.requests} --max-concurrency {load.streams} --warmup-requests 1 --disable-tqdm"
    command = [str(SGLANG / "venv" / "bin" / "python"), "-m", "sglang.benchmark.serving", "--backend", "sglang"]
    command += ["--base-url", load.url, "--model", str(SGLANG / "model"), "--dataset-name", "random-ids"]
    return [*command, *lengths.split(), *counts.split(), "--output-file", str(load.folder / "sglang.jsonl")]


def aiperf(load: Load) -> list[str]:
    lengths = f"--isl {INPUT_TOKENS} --osl {OUTPUT_TOKENS} --extra-inputs ignore_eos:true --ui none"
    counts = f"--concurrency {load.streams} --request-count {load.requests} --streaming --endpoint-type completions"
    command = [str(OTHERS / "aiperf" / "bin" / "aiperf"), "profile", "--model", "exact", "--url", load.url]
    command += ["--tokenizer", str(SGLANG / "model"), "--artifact-dir", str(load.folder / "aiperf")]
    return [*command, *lengths.split(), *counts.split()]


def guidellm(load: Load) -> list[str]:
    command = [str(OTHERS / "guidellm" / "bin" / "guidellm"), "run", "--disable-console"]
    command += ["--backend", f"kind=openai_http,target={load.url},model=exact,request_format=/v1/completions"]
    command += ["--profile", f"kind=concurrent,streams={load.streams}"]
    command += ["--constraint", f"kind=max_requests,count={load.requests}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens={INPUT_TOKENS},output_tokens={OUTPUT_TOKENS}"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={SGLANG / 'model'}"]
    return [*command, "--output", f"kind=json,path={load.folder / 'benchmarks.json'}"]


def from_ours(load: Load, output: str) -> float | None:
    return float(json.loads(output)["levels"][0]["output_tokens_per_s"]["value"])


def from_bench_serving(load: Load, output: str) -> float | None:
    return float(json.loads((load.folder / "sglang.jsonl").read_text().splitlines()[-1])["output_throughput"])


def from_aiperf(load: Load, output: str) -> float | None:
    told = json.loads((load.folder / "aiperf" / "profile_export_aiperf.json").read_text())
    return float(told["output_token_throughput"]["avg"])


def from_guidellm(load: Load, output: str) -> float | None:
    told = json.loads((load.folder / "benchmarks.json").read_text())
    return float(told["benchmarks"][0]["metrics"]["output_tokens_per_second"]["successful"]["mean"])


TOOLS = (
    Tool("servetune", Path(sys.executable), ours, from_ours),
    Tool("aiohttp on uvloop", Path(sys.executable), plain_aiohttp, lambda load, output: None),
    Tool("SGLang bench_serving", SGLANG / "venv", bench_serving, from_bench_serving, {"SGLANG_USE_CPU_ENGINE": "1"}),
    Tool("aiperf", OTHERS / "aiperf", aiperf, from_aiperf),
    Tool("guidellm", OTHERS / "guidellm", guidellm, from_guidellm),
)


@dataclass(frozen=True)
class Result:
    cpu_s: float
    wall_s: float
    events: int
    served_per_s: float
    claimed_per_s: float | None
    trouble: str = ""


def run(tool: Tool, streams: int, requests: int, itl_s: float) -> Result:
    with tempfile.TemporaryDirectory() as folder, exact_rate_server("--itl-s", itl_s, "--ttft-s", 0.2) as server:
        load = Load(server.url, streams, requests, Path(folder))
        before, begin = children_cpu_s(), time.monotonic()
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"} | (tool.environment or {})
        try:
            done = subprocess.run(
                tool.command(load), capture_output=True, text=True, timeout=LONGEST_S, env=environment, check=False
            )
        except subprocess.TimeoutExpired:
            return Result(0.0, LONGEST_S, 0, 0.0, None, f"not done within {LONGEST_S} s")
        cpu_s, wall_s, stamps = children_cpu_s() - before, time.monotonic() - begin, server.stamps()
        claimed, trouble = None, ""
        try:
            claimed = tool.claimed(load, done.stdout)
        except (OSError, KeyError, ValueError, IndexError) as error:
            trouble = f"exit status {done.returncode}, {type(error).__name__}: {error}; {done.stderr[-300:]}"
        return Result(cpu_s, wall_s, len(stamps.time), best_rate(stamps), claimed, trouble)


def children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def best_rate(stamps: Stamps) -> float:
    """Events per second in the time that holds the middle three quarters of them: neither ramp nor tail."""
    if len(stamps.time) < 100:
        return 0.0
    begin, end = np.quantile(stamps.time, [0.2, 0.8])
    return float(0.6 * len(stamps.time) / (end - begin))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1024)
    parser.add_argument("--itl-s", type=float, default=0.05)
    parser.add_argument("--waves", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    wanted = f"{options.streams / options.itl_s:,.0f}"
    print(
        f"{options.streams} streams, {1 / options.itl_s:g} events/s each ({wanted} in all), on {os.cpu_count()} cores"
    )
    print(
        f"{'tool':22} {'µs of CPU/event':>16} {'× servetune':>12} {'with start-up':>14} {'× servetune':>12} "
        f"{'served events/s':>16} {'claims tokens/s':>16}"
    )
    reference: tuple[float, float] | None = None
    for tool in (tool for tool in TOOLS if not options.only or tool.name in options.only):
        if not tool.needs.exists():
            print(f"{tool.name:22} not installed (benchmarks/load/setup.sh)")
            continue
        fixed = run(tool, FEW, FEW, options.itl_s)
        results = [
            run(tool, options.streams, options.waves * options.streams, options.itl_s) for _ in range(options.repeat)
        ]
        good = [result for result in results if result.events > fixed.events]
        if not good:
            print(f"{tool.name:22} failed: {results[0].trouble}")
            continue
        costs = [(result.cpu_s - fixed.cpu_s) / (result.events - fixed.events) * 1e6 for result in good]
        best = good[int(np.argmin(costs))]
        cost, whole = min(costs), best.cpu_s / best.events * 1e6
        reference = reference or (cost, whole)
        claims = "–" if best.claimed_per_s is None else f"{best.claimed_per_s:,.0f}"
        times, whole_times = cost / reference[0], whole / reference[1]
        print(
            f"{tool.name:22} {cost:16.1f} {times:12.1f} {whole:14.1f} {whole_times:12.1f} {best.served_per_s:16,.0f} "
            f"{claims:>16} {best.trouble}",
            flush=True,
        )


if __name__ == "__main__":
    main()
