"""Composes SGLang logs in the formats of real versions: start-up lines, tracebacks per rank, noise, container prefixes."""

# ruff: noqa: E501 - log lines are as long as they are

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

SRT = "/usr/local/lib/python3.12/dist-packages/sglang/srt"
SCHEDULER = (
    "managers/scheduler.py:run_scheduler_process> scheduler = Scheduler(",
    "managers/scheduler.py:__init__> self.init_model_worker()",
    "managers/tp_worker.py:__init__> self._init_model_runner()",
    "model_executor/model_runner.py:__init__> self.initialize(min_per_gpu_memory)",
)
LOADING = (
    *SCHEDULER,
    "model_executor/model_runner.py:initialize> self.load_model()",
    "model_loader/loader.py:load_model> model = _initialize_model(",
)
DISTRIBUTED = (*SCHEDULER[:3], "model_executor/model_runner.py:init_torch_distributed> initialize_model_parallel(")
POOLS = (
    *SCHEDULER,
    "model_executor/model_runner.py:initialize> self.init_memory_pool(",
    "mem_cache/memory_pool.py:_create_buffers> torch.zeros(",
)
CAPTURE = (
    "model_executor/cuda_graph_runner.py:__init__> self.capture()",
    "model_executor/cuda_graph_runner.py:capture> self.capture_one_batch_size(bs, forward)",
    "model_executor/cuda_graph_runner.py:run_once> logits_output = forward(",
)
CAPTURE_WRAPPER = (
    *SCHEDULER,
    "model_executor/model_runner.py:initialize> self.init_device_graphs()",
    "model_executor/cuda_graph_runner.py:__init__> raise Exception(",
)
NEW_CAPTURE = (
    "managers/scheduler.py:run_scheduler_process> scheduler = Scheduler(server_args, port_args)",
    "managers/scheduler.py:init_model_worker> self.init_all_cuda_graphs()",
    "model_executor/model_runner.py:init_cuda_graphs> capture = capture_cuda_graphs(",
    "model_executor/runner/decode_cuda_graph_runner.py:__init__> self.capture()",
)
EVENT_LOOP = (
    "managers/scheduler.py:run_scheduler_process> scheduler.event_loop_overlap()",
    "managers/scheduler.py:event_loop_overlap> batch_result = self.run_batch(batch)",
    "managers/scheduler.py:run_batch> batch_result = self.model_worker.forward_batch_generation(",
    "model_executor/model_runner.py:forward> output = self._forward_raw(",
)
VALIDATION = (
    "../launch_server.py:<module>> server_args = prepare_server_args(sys.argv[1:])",
    "server_args.py:prepare_server_args> return ServerArgs.from_cli_args(raw_args)",
    "server_args.py:__post_init__> self._handle_a2a_moe()",
)
HINTS = """Possible solutions:
1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)
2. set --cuda-graph-max-bs to a smaller value (e.g., 16)
3. disable torch compile by not using --enable-torch-compile
4. disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)
Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose
"""
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {mib} MiB. GPU {gpu} has a total capacity of 79.11 GiB of "
    "which 151.12 MiB is free. Including non-PyTorch memory, this process has 78.90 GiB memory in use. Of the allocated "
    "memory 71.20 GiB is allocated by PyTorch, and 512.11 MiB is reserved by PyTorch but unallocated."
)


@dataclass
class Log:
    """A log under construction. `decisive` is set to the line that a test expects to decide."""

    lines: list[str] = field(default_factory=list)
    decisive: int = 0
    second: int = 0

    def stamp(self, rank: str = "") -> str:
        """The logger's prefix at the current second."""
        minutes, seconds = divmod(self.second, 60)
        return f"[2026-03-04 11:{minutes:02d}:{seconds:02d}{' ' + rank if rank else ''}]"

    def add(self, text: str, rank: str | None = None, wait: int = 0) -> Log:
        """Add text, stamped when a rank is given (empty: the parent's own)."""
        self.second += wait
        shown = text if rank is None else f"{self.stamp(rank)} {text}"
        self.lines += shown.split("\n")
        return self

    def decides(self, text: str, rank: str | None = None, wait: int = 0) -> Log:
        """Add the line that decides (the first of `text`)."""
        self.second += wait
        self.decisive = len(self.lines) + 1
        return self.add(text, rank)

    def arguments(self, new: bool = False, **values: object) -> Log:
        """The effective arguments, in the old or the new form."""
        shown = {"model_path": "/models/moe", "host": "127.0.0.1", "port": 30000, **values}
        if new:
            return self.add(f"server_args={shown!r}", "", 3)
        listed = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return self.add(f"server_args=ServerArgs({listed})", "", 3)

    def start(self, upto: str, ranks: Sequence[str] = ("",), version: str = "0.5.9", **memory: float) -> Log:
        """Start-up lines up to and including a milestone: dist, load, weights, pool, capture, captured, http, ready."""
        begin, after, pool = memory.get("begin", 78.5), memory.get("after", 40.2), memory.get("pool", 12.1)
        new = version >= "0.5.14"
        steps: dict[str, Callable[[str], str]] = {
            "dist": lambda rank: "Init torch distributed begin.",
            "load": lambda rank: f"Load weight begin. avail mem={begin:.2f} GB",
            "weights": lambda rank: (
                f"Load weight end.{'' if version < '0.5.9' else ' elapsed=91.31 s,'} type=Qwen3MoeForCausalLM, "
                f"{'quant=fp8, bits=None' if version >= '0.5.12' else 'dtype=torch.bfloat16'}, "
                f"avail mem={after:.2f} GB, mem usage={begin - after:.2f} GB."
            ),
            "pool": lambda rank: f"Memory pool end. avail mem={pool:.2f} GB",
            "capture": lambda rank: (
                f"Capture target decode CUDA graph begin. backend=full, num_tokens_per_bs=1, bs=[1, 2, 4, 8, 16, 32, 64], avail mem={pool:.2f} GB"
                if new
                else f"Capture cuda graph begin. This can take up to several minutes. avail mem={pool:.2f} GB"
            ),
            "captured": lambda rank: (
                f"Capture target decode CUDA graph end. elapsed=9.20 s, mem usage=1.10 GB, avail mem={pool - 1.1:.2f} GB."
                if new
                else f"Capture cuda graph end. Time elapsed: 9.20 s. mem usage=1.10 GB. avail mem={pool - 1.1:.2f} GB."
            ),
        }
        for name, text in steps.items():
            for index, rank in enumerate(ranks):
                self.add(text(rank), rank, 0 if index else 4)
            if name == "weights" and upto != "weights":
                for rank in ranks:
                    self.add("KV Cache is allocated. #tokens: 181000, K size: 14.0 GB, V size: 14.0 GB", rank)
            if name == "capture":
                self.add("Capturing batches (bs=64 avail_mem=11.80 GB):   0%|          | 0/7 [00:00<?, ?it/s]")
            if name == upto:
                return self
        self.add(
            "max_total_num_tokens=181000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, "
            f"context_len=32768, available_gpu_mem={pool - 1.1:.2f} GB",
            ranks[0],
            1,
        )
        for text in (
            "Started server process [71]",
            "Waiting for application startup.",
            "Application startup complete.",
        ):
            self.add(f"INFO:     {text}", "")
        self.add("INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)", "")
        if upto == "http":
            return self
        self.add('INFO:     127.0.0.1:5000 - "POST /generate HTTP/1.1" 200 OK', "", 2)
        self.add("The server is fired up and ready to roll!", "")
        return self.serve(3, ranks[0])

    def serve(self, batches: int, rank: str = "") -> Log:
        """Prefill and decode lines, answered requests."""
        for index in range(batches):
            self.add(
                "Prefill batch, #new-seq: 4, #new-token: 2048, #cached-token: 0, token usage: 0.10, #running-req: 12, "
                "#queue-req: 3, ",
                rank,
                1,
            )
            self.add(
                f"Decode batch, #running-req: 16, #token: {9000 + index}, token usage: 0.12, cuda graph: True, "
                "gen throughput (token/s): 812.44, #queue-req: 0",
                rank,
                1,
            )
            self.add(f'INFO:     127.0.0.1:{41000 + index} - "POST /generate HTTP/1.1" 200 OK', "")
        return self

    def raises(
        self,
        rank: str | None,
        frames: Sequence[str],
        text: str,
        wrapper: tuple[Sequence[str], str] | None = None,
        decisive: bool = False,
        header: str = "Scheduler hit an exception: ",
        wait: int = 0,
        decisive_part: str = "",
    ) -> Log:
        """A traceback, with the exception that wrapped it. `decisive`: it decides (the line with `decisive_part`)."""
        self.second += wait
        self.add(f"{header}Traceback (most recent call last):", rank)
        self._frames(frames)
        if decisive:
            offset = [decisive_part in line for line in text.split("\n")].index(True)
            self.decisive = len(self.lines) + 1 + offset
        self.add(text)
        if wrapper:
            self.add(
                "\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):"
            )
            self._frames(wrapper[0])
            self.add(wrapper[1])
        return self.add("")

    def _frames(self, frames: Sequence[str]) -> None:
        for index, frame in enumerate(frames):
            place, _, code = frame.partition("> ")
            path, _, function = place.rpartition(":")
            full = path if path.startswith("/") else f"{SRT}/{path}"
            self.add(f'  File "{full}", line {100 + index}, in {function}')
            if code:
                self.add(f"    {code}")
                if index % 2:
                    self.add("    ^^^^^^^^^^^^^^^^^^")

    def dies(self, serving: bool = False) -> Log:
        """How the parent reacts."""
        if serving:
            self.add("SIGQUIT received. signum=None, frame=None. It usually means one child failed.", "", 1)
        else:
            self.add("Received sigquit from a child process. It usually means the child failed.", "", 1)
        return self.add("Killed")

    def text(self) -> str:
        """The log."""
        return "\n".join(self.lines) + "\n"


def captured(text: str) -> tuple[Sequence[str], str]:
    """The wrapper that graph capture puts around any exception."""
    return CAPTURE_WRAPPER, f"Exception: Capture cuda graph failed: {text}\n{HINTS}"


def plain(text: str) -> bytes:
    return text.encode()


def crlf(text: str) -> bytes:
    return text.replace("\n", "\r\n").encode()


def compose_prefix(text: str) -> bytes:
    return "".join(f"sglang-worker-1  | {line}\n" for line in text.splitlines()).encode()


def kubernetes(text: str) -> bytes:
    return "".join(
        f"2026-03-04T11:{i // 60 % 60:02d}:{i % 60:02d}.{i:09d}Z stderr F {line}\n"
        for i, line in enumerate(text.splitlines())
    ).encode()


def docker_json(text: str) -> bytes:
    shown = ({"log": f"{line}\n", "stream": "stderr", "time": "2026-03-04T11:00:00Z"} for line in text.splitlines())
    return "".join(json.dumps(line) + "\n" for line in shown).encode()


def json_logger(text: str) -> bytes:
    """One object a line, the text under `message`."""
    return "".join(json.dumps({"level": "INFO", "message": line}) + "\n" for line in text.splitlines()).encode()


def tabbed(text: str) -> bytes:
    return "".join(f"2026-03-04 11:00:{i % 60:02d}.000\t{line}\n" for i, line in enumerate(text.splitlines())).encode()


def coloured(text: str) -> bytes:
    return "".join(
        f"\x1b[{31 + i % 3}m{line}\x1b[0m\n" if line else "\n" for i, line in enumerate(text.splitlines())
    ).encode()


def journal(text: str) -> bytes:
    return "".join(f"Mar 04 11:00:00 gpu-7 sglang[4711]: {line}\n" for line in text.splitlines()).encode()


def kubectl(text: str) -> bytes:
    return "".join(f"[pod/sglang-0/server] {line}\n" for line in text.splitlines()).encode()


def mpirun(text: str) -> bytes:
    return "".join(f"Thu Jan 23 11:55:50 2026[1,3]<stderr>:{line}\n" for line in text.splitlines()).encode()


def ray(text: str) -> bytes:
    return "".join(f"\x1b[36m(WorkerDict pid=616, ip=10.0.0.7)\x1b[0m {line}\n" for line in text.splitlines()).encode()


def jenkins(text: str) -> bytes:
    return "".join(f"[2026-03-04T11:00:00.703Z] {line}\n" for line in text.splitlines()).encode()


def latin(text: str) -> bytes:
    """Bytes that are no UTF-8, here and there."""
    lines = text.encode().split(b"\n")
    return b"\n".join(
        line + b" caf\xe9" if i % 11 == 5 and b"Prefill" in line else line for i, line in enumerate(lines)
    )


def cut_last_line(text: str) -> bytes:
    return f"{text}/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: There appear to be 1 leak".encode()


DRESSES = (
    plain,
    crlf,
    compose_prefix,
    kubernetes,
    docker_json,
    json_logger,
    tabbed,
    coloured,
    journal,
    kubectl,
    mpirun,
    ray,
    jenkins,
    latin,
    cut_last_line,
)
