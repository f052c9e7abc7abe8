"""The flags of one launch, as far as they are known: asked for, effective, environment; and whom a message blames."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from servetune.core.failure import Phase
from servetune.core.space import Assignment
from servetune.engines.sglang._flags_in_words import spelled, without
from servetune.engines.sglang._log_args import flag_name, is_set
from servetune.engines.sglang._log_run import Run

#: Frames that belong to one option: the innermost frame that matches decides.
FRAME_FLAGS: tuple[tuple[str, str], ...] = (
    (r"torch_symm_mem", "enable-torch-symm-mem"),
    (r"pymscclpp|mscclpp", "enable-mscclpp"),
    (r"pynccl_allocator|use_symmetric_memory", "enable-symm-mem"),
    (r"custom_all_reduce|quick_all_reduce|_all_reduce_out_place", "disable-custom-all-reduce"),
    (r"flashinfer_comm_fusion|flashinfer/comm/|allreduce_fusion", "enable-flashinfer-allreduce-fusion"),
    (r"allreduce_fusion|flashinfer/comm/", "flashinfer-allreduce-fusion-backend"),
    (r"two_batch_overlap", "enable-two-batch-overlap"),
    (r"single_batch_overlap", "enable-single-batch-overlap"),
    (r"token_dispatcher/|deep_ep/|mooncake|:\w*deepep\w*", "moe-a2a-backend"),
    (r"layers/moe/|fused_moe|moe_runner|^triton_kernels/matmul_ogs", "moe-runner-backend"),
    (r"batch_invariant_ops", "enable-deterministic-inference"),
    (r"piecewise", "enable-piecewise-cuda-graph"),
    (r"layers/attention/(?:linear|fla|mamba)/", "linear-attn-backend"),
    (r"layers/attention/mamba/", "mamba-backend"),
    (r"layers/attention/\w*dsa\w*\.py:\w*(?:decode|fa3|flashmla|trtllm|tilelang)", "dsa-decode-backend"),
    (r"layers/attention/\w*dsa|/dsa/", "dsa-prefill-backend"),
    (r"layers/attention/\w*[nd]sa|/[nd]sa/", "nsa-decode-backend"),
    (r"layers/attention/\w*[nd]sa|/[nd]sa/", "nsa-prefill-backend"),
    (
        r"layers/attention/|attention_registry|attention_backend|flash_attn|flash_mla|^flashinfer/(?:mla|prefill|decode|xqa)",
        "attention-backend",
    ),
    (r"eplb_algorithms", "eplb-algorithm"),
    (r"/eplb/", "expert-distribution-recorder-mode"),
    (r"/eplb/", "enable-eplb"),
    (r"pool_host|hicache|hiradix|hybrid_cache", "enable-hierarchical-cache"),
    (r"speculative/|eagle_|ngram_", "speculative-algorithm"),
    (r"/lora/|lora_manager", "enable-lora"),
    (r"disaggregation/", "disaggregation-mode"),
    (r"quantization/", "quantization"),
    (r"_dynamo|torch/compile|inductor", "enable-torch-compile"),
)
#: Words of a message that belong to one option.
TEXT_FLAGS: tuple[tuple[str, str], ...] = (
    (r"fp4_(?:scaled_)?(?:mm|gemm)|(?:mm|gemm)_fp4|nvfp4_scaled|fp4_gemm", "fp4-gemm-backend"),
    (r"fp8_(?:scaled_|blockwise_)?(?:mm|gemm)|(?:mm|gemm)_fp8|fp8_gemm", "fp8-gemm-backend"),
    (r"(?i)fp[48] KV cache|kv.cache.{0,20}(?:dtype|fp8|fp4)", "kv-cache-dtype"),
    (r"type fp8e\d", "kv-cache-dtype"),
    (r"(?i)\b(?:flash|attention|mla|mha|kv)\w*\b.{0,60}\b(?:fp16|bf16|fp8|data ?types?|dtypes?)\b", "kv-cache-dtype"),
    (r"(?i)\bflash ?(?:attention|mla)\b.{0,60}\b(?:data ?types?|dtypes?)\b", "attention-backend"),
    (r"(?i)\bnumber of nodes\b", "nnodes"),
    (r"flashinfer[_-]python", "attention-backend"),
    (r"(?i)\b(?:mha|mla|flash ?attention|attention)\b.{0,20}backend", "attention-backend"),
    (
        r"(?i)\bmoe[ _-]?(?:runner|backend)|(?:cutlass|trtllm|mxfp4|cutedsl|marlin|aiter|triton|deep_?gemm)[ _-]+moe\b",
        "moe-runner-backend",
    ),
    (r"(?i)quantization '|\bquantization method\b", "quantization"),
    (r"(?i)schedule[ _-]conservativeness", "schedule-conservativeness"),
    (r"major versions \[9, 10\]", "enable-flashinfer-allreduce-fusion"),
    (r"major versions \[9, 10\]", "flashinfer-allreduce-fusion-backend"),
    (r"(?i)allreduce_fusion|allreduce fusion", "enable-flashinfer-allreduce-fusion"),
    (r"(?i)allreduce_fusion|allreduce fusion", "flashinfer-allreduce-fusion-backend"),
    (r"(?i)two.batch.overlap|\bTBO\b", "enable-two-batch-overlap"),
    (r"(?i)single.batch.overlap|\bSBO\b", "enable-single-batch-overlap"),
    (r"(?i)symm\w*[ _]mem", "enable-torch-symm-mem"),
    (r"(?i)symm\w*[ _](?:mem|window|regist)", "enable-symm-mem"),
    (r"(?i)mscclpp|msccl\+\+", "enable-mscclpp"),
    (r"(?i)piecewise", "enable-piecewise-cuda-graph"),
    (r"(?i)speculative|eagle|draft|nextn|\bMTP\b", "speculative-algorithm"),
    (r"(?i)dp.attention", "enable-dp-attention"),
    (r"(?i)hicache|hierarchical", "enable-hierarchical-cache"),
    (r"(?i)mixed.chunk", "enable-mixed-chunk"),
)
_FLAG = re.compile(r"--([a-z][a-z0-9]*(?:[-_][a-z0-9]+)*)")
_VARIABLE = re.compile(r"\b([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\b")
_FIELD = re.compile(r"\b(?:self\.)?(?:server_args\.)?([a-z][a-z0-9]*(?:_[a-z0-9]+)+)\b")
_FIELDS = frozenset(
    (
        "tp_size",
        "dp_size",
        "ep_size",
        "pp_size",
        "attn_dp_size",
        "moe_dense_tp_size",
        "moe_a2a_backend",
        "moe_runner_backend",
        "deepep_mode",
        "chunked_prefill_size",
        "page_size",
        "enable_dp_attention",
        "enable_dp_lm_head",
        "attention_backend",
        "kv_cache_dtype",
        "speculative_num_draft_tokens",
        "speculative_num_steps",
        "speculative_eagle_topk",
        "speculative_algorithm",
        "max_running_requests",
        "enable_two_batch_overlap",
        "enable_mixed_chunk",
        "disable_radix_cache",
        "cuda_graph_max_bs",
        "context_length",
        "quantization",
        "mem_fraction_static",
        "ep_num_redundant_experts",
        "enable_eplb",
    )
)
#: Variables that only make a library say more.
_TELLS_MORE = re.compile(r"_(?:DEBUG|LOG|TRACE)(?:_|$)")
#: Sizes of which 1 means that there is no such parallelism.
PARALLEL = frozenset(("tp-size", "dp-size", "ep-size", "pp-size", "attn-dp-size"))
#: Flags whose value choose a kernel or a path: their value in a message points at them.
VALUED = (
    "moe-runner-backend",
    "moe-a2a-backend",
    "attention-backend",
    "prefill-attention-backend",
    "decode-attention-backend",
    "quantization",
    "kv-cache-dtype",
    "speculative-algorithm",
    "deepep-mode",
    "fp4-gemm-backend",
    "fp8-gemm-backend",
    "sampling-backend",
    "load-format",
    "grammar-backend",
    "lora-backend",
    "linear-attn-backend",
)


#: Options that choose kernels, and options that choose how ranks communicate and what is captured.
KERNELS = (
    "moe-a2a-backend",
    "moe-runner-backend",
    "attention-backend",
    "prefill-attention-backend",
    "decode-attention-backend",
    "quantization",
    "kv-cache-dtype",
    "fp4-gemm-backend",
    "fp8-gemm-backend",
    "speculative-algorithm",
    "enable-two-batch-overlap",
    "enable-single-batch-overlap",
    "enable-deterministic-inference",
)
PATHS = (
    "enable-flashinfer-allreduce-fusion",
    "flashinfer-allreduce-fusion-backend",
    "enable-torch-symm-mem",
    "enable-symm-mem",
    "enable-mscclpp",
    "enable-nccl-nvls",
    "disable-custom-all-reduce=False",
    "env.NCCL_ALGO=Tree",
    "enable-piecewise-cuda-graph",
    "cuda-graph-backend-prefill",
    "enable-torch-compile",
)


#: Sizes from here on are nobody's.
LARGEST = 10**15
#: Frames of the libraries that attention backends call.
_ATTENTION_LIBRARY = re.compile(r"(?:sgl_kernel/)?flash_(?:attn|mla)")
#: A switch with a shorter name than this stands in paths by chance.
LEAST_NAME = 5
#: Values that turn a choice of kernels, graphs or backends off.
_OFF = ("disabled", "off", "none")


@dataclass(frozen=True, slots=True)
class LaunchFlags:
    """`asked`: by the assignment, else by the command shown in the log. `effective`: from `server_args=`."""

    asked: Mapping[str, Any] = field(default_factory=dict)
    effective: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run, assignment: Assignment) -> LaunchFlags:
        """What is known of a run's flags; environment variables are `env.NAME`."""
        env = {f"env.{name}": value for name, value in run.env.items()}
        asked = {flag_name(name) if not name.startswith("env.") else name: value for name, value in assignment.items()}
        return cls({**env, **(asked or run.command)}, dict(run.effective))

    @property
    def known(self) -> bool:
        """Whether anything is known."""
        return bool(self.asked or self.effective)

    def value(self, flag: str) -> Any:
        """Effective value, else the one asked for, else None."""
        return self.effective[flag] if flag in self.effective else self.asked.get(flag)

    def on(self, flag: str) -> bool:
        """Whether the flag switches something on, or has a value that is not left to the engine."""
        for value in (self.asked.get(flag), self.effective.get(flag)):
            if is_set(value) and not (flag in PARALLEL and value == 1):
                return True
        return False

    def asked_off(self, flag: str) -> bool:
        """Whether the user asked for what the flag names to be off: a line that says so is then no news.

        Where the log shows no command, `server_args=` tells what a choice was set to.
        """
        if flag.startswith("disable-"):
            return is_set(self.asked.get(flag))
        asked = self.value(flag) if flag not in self.asked else self.asked[flag]
        return asked in _OFF or (flag in self.asked and asked is False)

    def switches(self) -> list[str]:
        """The switches that are on."""
        names = dict.fromkeys([*self.asked, *self.effective])
        return [flag for flag in names if flag.startswith(("enable-", "disable-")) and self.on(flag)]

    def choices(self) -> list[str]:
        """The flags that are on and have a word for a value."""
        return [flag for flag in dict.fromkeys([*self.asked, *self.effective]) if isinstance(self.value(flag), str)]

    def number(self, flag: str) -> float | None:
        """The value as a number; None when it is not one."""
        return usable(self.value(flag))


def usable(value: Any) -> float | None:
    """A number that can be reckoned with; None for what is none, not finite, or larger than any size."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -LARGEST < value < LARGEST else None


def kept(wanted: Iterable[str], flags: LaunchFlags) -> list[str]:
    """The flags of a blame list that are switched on; with `!` always, with `+` beside another one that is kept,
    with `=value` when they have that value; with `*` at the end all that begin so.
    """
    found: list[str] = []
    for entry in wanted:
        if entry.endswith("*"):
            found += [flag for flag in flags.asked if flag.startswith(entry[:-1]) and not _TELLS_MORE.search(flag)]
            continue
        flag, mark, value = entry.rstrip("!+").partition("=")
        always = entry.endswith("!") or (entry.endswith("+") and bool(found))
        if always or (str(flags.asked.get(flag)) == value if mark else flags.on(flag)):
            found.append(flag)
    return [flag for flag in found if flag.replace("disable-", "enable-", 1) not in found or "disable-" not in flag]


def suspects(phase: Phase, flags: LaunchFlags) -> list[str]:
    """Options that were asked for and choose code paths, likeliest first: blamed when nothing in the log names one."""
    ordered = (*PATHS, *KERNELS) if phase is Phase.GRAPH_CAPTURE else (*KERNELS, *PATHS)
    return kept(ordered, LaunchFlags(flags.asked))


def accused(text: str, stack: str, flags: LaunchFlags) -> list[str]:
    """Flags that a message and its frames point at, most telling first: named, by value, by field, by frame."""
    named = [flag_name(name) for name in _FLAG.findall(text)]
    text = re.sub(r"^(?:[\w.]+(?:Error|Exception|OutOfResources)\b|(?:[a-z_]\w*\.)+[A-Z]\w+: )", "", text)
    in_full = spelled(text, flags.choices())
    rest = without(text, in_full)
    by_words = [flag for pattern, flag in TEXT_FLAGS if re.search(pattern, rest)]
    by_words += [flag for flag in flags.switches() if _named_in_words(flag, text)]
    valued = [flag for flag in VALUED if not any(name.endswith(f"-{flag}") for name in in_full)]
    by_value = _nearest([flag for flag in valued if value_in(flags.value(flag), text)], stack)
    fields = [flag_name(name) for name in _FIELD.findall(text) if name in _FIELDS or flag_name(name) in flags.asked]
    code = _last_code(stack)
    by_code = [
        flag_name(name)
        for name in _FIELD.findall(code)
        if name in _FIELDS or (code.startswith("assert ") and _is_known(name, flags))
    ]
    variables = [f"env.{name}" for name in _VARIABLE.findall(text) if f"env.{name}" in flags.asked]
    pointed_at = dict.fromkeys([*in_full, *by_value, *fields, *named, *variables, *by_words])
    found = [flag for flag in pointed_at if flags.on(flag) or flag in flags.asked or not flags.known]
    if not found:
        found = [*_by_frames(stack, flags), *(flag for flag in by_code if flags.on(flag))]
    return list(dict.fromkeys(found or named))[:3]


def _nearest(found: list[str], stack: str) -> list[str]:
    """Of flags with the same value those of the module that speaks (`lora-backend` in `lora/`), where there are any."""
    place = stack.rsplit("\n", 1)[-1].partition("> ")[0]
    near = [flag for flag in found if re.search(rf"(?<![a-z]){flag.partition('-')[0]}(?![a-z])", place)]
    return near if near and len(found) > len(near) else found


def names_flags(text: str, flags: LaunchFlags) -> bool:
    """Whether a sentence names a flag of the server, as typed or as its field (`tp_size`)."""
    said = text.partition(": ")[2]
    fields = (flag_name(name) for name in _FIELD.findall(said) if name in _FIELDS or _is_known(name, flags))
    return bool(_FLAG.search(said)) or any(True for _ in fields)


def _is_known(name: str, flags: LaunchFlags) -> bool:
    return flag_name(name) in flags.asked or flag_name(name) in flags.effective


def value_in(value: Any, text: str) -> bool:
    """Whether a flag's value stands in a message as a word of its own (not as the name of a module or a path)."""
    if not isinstance(value, str) or len(value) < 3 or not is_set(value):
        return False
    words = text.replace("-", "_").replace(" ", "_")
    package = r"(?:_python|_kernel)?"
    return bool(re.search(rf"(?i)(?<![\w/.]){re.escape(value)}{package}(?![a-z0-9/]|\.[a-z])", words)) or bool(
        re.search(rf"(?i)(?<![a-z0-9/.])_?{re.escape(value)}{package}(?:_|\b)(?!\.[a-z])", words)
    )


def _named_in_words(flag: str, text: str) -> bool:
    """`enable-multi-layer-eagle` is named by "multi-layer EAGLE"."""
    words = re.escape(flag.partition("-")[2]).replace(r"\-", "[-_ ]?")
    return len(flag) > len("disable-") + 3 and bool(re.search(rf"(?i)\b{words}\b", text))


def _last_code(stack: str) -> str:
    return stack.rsplit("\n", 1)[-1].partition("> ")[2]


def _by_frames(stack: str, flags: LaunchFlags) -> list[str]:
    own = "layers/attention/" in stack
    for frame in reversed(stack.split("\n")):
        if own and _ATTENTION_LIBRARY.match(frame):
            continue  # the backend that calls it says more
        found = [flag for pattern, flag in FRAME_FLAGS if re.search(pattern, frame) and _plausible(flag, flags)]
        found += [flag for flag in flags.switches() if _is_path_of(flag, frame)]
        if found:
            return list(dict.fromkeys(found))[:2]
    return []


def switched_by_frames(stack: str, flags: LaunchFlags) -> list[str]:
    """The switches that are on and whose name the innermost such frame has."""
    for frame in reversed(stack.split("\n")):
        found = [flag for flag in flags.switches() if _is_path_of(flag, frame)]
        if found:
            return found[:2]
    return []


def _is_path_of(flag: str, frame: str) -> bool:
    """Whether a switch has its name, or all but its last word, in a file or a function of a frame.

    `pdmux_context.py` is of `enable-pdmux`, `expert_distribution.py` of `enable-expert-distribution-metrics`.
    """
    words = flag.split("-")[1:]
    names = ["_".join(words), *(["_".join(words[:-1])] if len(words) > 2 else [])]
    place = frame.partition("> ")[0]
    return any(len(name) >= LEAST_NAME and re.search(rf"(?<![a-z]){name}(?![a-z])", place) for name in names)


def accused_unseen(stack: str, flags: LaunchFlags) -> list[str]:
    """Flags of the innermost telling frame that the log says nothing about: that code ran, so it was switched on."""
    for frame in reversed(stack.split("\n")):
        found = [flag for pattern, flag in FRAME_FLAGS if re.search(pattern, frame)]
        if found:
            unseen = [flag for flag in found if flag not in flags.asked and flag not in flags.effective]
            return list(dict.fromkeys(unseen))[:1]
    return []


def _plausible(flag: str, flags: LaunchFlags) -> bool:
    return flags.on(flag) or flag == "disable-custom-all-reduce"
