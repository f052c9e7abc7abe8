"""Speculative decoding: parameters that the engine fills in, and what it excludes."""

from __future__ import annotations

from pathlib import Path

from servetune.engines.sglang.rules._registry import Assign, Effects, Fill, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State

SOURCE = "server_args.py:_handle_speculative_decoding; 0.5.13+: arg_groups/speculative_hook.py"
_EAGLE_LIKE = ("EAGLE", "EAGLE3", "STANDALONE")
_LLAMA_LIKE = frozenset({"LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM"})


@rule("speculative.draft_quantization", Stage.SPECULATIVE, source=SOURCE)
def draft_runner(s: State) -> Effects:
    """The draft's MoE runner follows the target's."""
    runner = s.speculative_moe_runner_backend
    if runner is None:
        target = s.moe_runner_backend
        if s.version <= (0, 5, 11) and target in ("flashinfer_trtllm", "flashinfer_trtllm_routed"):
            target = "auto"
        elif s.version >= (0, 5, 20) and target == "flashinfer_megamoe":
            target = "flashinfer_trtllm"
        elif target.startswith("lora_"):
            target = "auto"
        yield Fill("speculative_moe_runner_backend", target)
    elif runner == "flashinfer_trtllm" and (0, 5, 7) <= s.version <= (0, 5, 11):
        yield Refuse(
            "the draft's MoE runner cannot be flashinfer_trtllm in this version",
            ("speculative_moe_runner_backend",),
            ("auto", "triton"),
        )


@rule("speculative.nextn_is_eagle", Stage.SPECULATIVE, source=SOURCE)
def nextn_is_eagle(s: State) -> Effects:
    """NEXTN is another name for EAGLE."""
    algorithm = s.speculative_algorithm
    if algorithm is None:
        return
    name = algorithm.upper() if s.version >= (0, 5, 12) else algorithm
    name = "EAGLE" if name == "NEXTN" else name
    if name != algorithm:
        yield Fill("speculative_algorithm", name)


_ALGORITHMS = frozenset({"DFLASH", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "NEXTN", "NGRAM", "NONE", "STANDALONE"})


@rule("speculative.known", Stage.SPECULATIVE, since="0.5.12", source="speculative/spec_info.py:from_string")
def known_algorithm(s: State) -> Effects:
    """From 0.5.12 on the parser takes any name; the algorithm must still be one of SGLang's own."""
    known = _ALGORITHMS | ({"DSPARK"} if s.version >= (0, 5, 16) else set())
    known |= {"UNO"} if s.version >= (0, 5, 20) else set()
    if s.speculative_algorithm is not None and str(s.speculative_algorithm).upper() not in known:
        yield Refuse(
            f"--speculative-algorithm {s.speculative_algorithm} is not known to this version",
            ("speculative_algorithm",),
            tuple(sorted(known - {"NONE"})),
        )


@rule("speculative.dflash_draft", Stage.SPECULATIVE, since="0.5.11", source="speculative_hook.py (DFLASH)")
def dflash_draft(s: State) -> Effects:
    """DFLASH has no draft of its own."""
    if s.speculative_algorithm == "DFLASH" and s.speculative_draft_model_path is None:
        yield Refuse(
            "DFLASH speculation needs --speculative-draft-model-path",
            ("speculative_algorithm", "speculative_draft_model_path"),
            ("name --speculative-draft-model-path",),
        )


@rule("speculative.frozen_cache", Stage.SPECULATIVE, since="0.5.12", source=SOURCE)
def frozen_cache(s: State) -> Effects:
    """FROZEN_KV_MTP runs without mixed chunks, and up to 0.5.13 without the overlap scheduler."""
    if s.speculative_algorithm != "FROZEN_KV_MTP":
        return
    if s.version <= (0, 5, 13):
        yield Assign("disable_overlap_schedule", True, "FROZEN_KV_MTP speculation")
    yield Assign("enable_mixed_chunk", False, "FROZEN_KV_MTP speculation")


@rule(
    "speculative.adaptive",
    Stage.SPECULATIVE,
    since="0.5.13",
    source="speculative/adaptive_spec_params.py:adaptive_unsupported_reason",
)
def adaptive(s: State) -> Effects:
    """Adaptive drafting is for EAGLE chains without attention data parallelism, and is dropped elsewhere."""
    if not s.speculative_adaptive:
        return
    chain = s.speculative_algorithm in ("EAGLE", "EAGLE3") and s.speculative_eagle_topk in (None, 1)
    if not chain or s.attention_dp > 1:
        yield Assign("speculative_adaptive", False, "it is for EAGLE chains without attention data parallelism")
    elif s.version >= (0, 5, 23):
        for field, value in (("speculative_eagle_topk", 1), ("speculative_num_steps", 3)):
            if getattr(s, field) is None:
                yield Fill(field, value)


@rule("speculative.one_block", Stage.SPECULATIVE, since="0.5.11", source="speculative_hook.py (DFLASH, DSPARK)")
def one_block(s: State) -> Effects:
    """DFLASH and DSPARK draft one block: steps and top-k are 1, and there is no pipeline."""
    if s.speculative_algorithm not in ("DFLASH", "DSPARK"):
        return
    for field in ("speculative_num_steps", "speculative_eagle_topk"):
        if getattr(s, field) is None:
            yield Fill(field, 1)
        elif getattr(s, field) != 1:
            yield Assign(field, 1, f"{s.speculative_algorithm} drafts one block")
    if s.enable_mixed_chunk and not _mixed_chunk(s):
        yield Assign("enable_mixed_chunk", False, f"{s.speculative_algorithm} speculation runs without mixed chunks")
    if s.speculative_algorithm == "DFLASH" and s.version <= (0, 5, 13):
        yield Assign("disable_overlap_schedule", True, "DFLASH speculation runs without the overlap scheduler")
    alone = s.speculative_algorithm == "DSPARK" and s.disaggregation_mode == "prefill"
    if s.pp_size != 1 and not alone:
        yield Refuse(
            f"{s.speculative_algorithm} speculation and --pp-size {s.pp_size} exclude each other",
            ("speculative_algorithm", "pp_size"),
            ("--pp-size 1",),
        )


@rule("speculative.draft_window", Stage.SPECULATIVE, since="0.5.12", source=SOURCE)
def draft_window(s: State) -> Effects:
    """The draft's window is positive; a sink belongs to a window."""
    window, sink = s.user.get("speculative_draft_window_size"), s.user.get("speculative_draft_sink_size")
    asked = s.version >= (0, 5, 14) or s.speculative_algorithm == "DFLASH"
    if asked and isinstance(window, int) and window <= 0:
        yield Refuse(
            f"--speculative-draft-window-size must be positive, got {window}", ("speculative_draft_window_size",)
        )
    if isinstance(sink, int) and (sink < 0 or window is None) and s.version >= (0, 5, 20):
        yield Refuse(
            "--speculative-draft-sink-size is not negative and needs --speculative-draft-window-size",
            ("speculative_draft_sink_size", "speculative_draft_window_size"),
            ("name --speculative-draft-window-size",),
        )


@rule("speculative.block_groups", Stage.SPECULATIVE, since="0.5.11", source=f"{SOURCE} (DFLASH, DSPARK)")
def block_groups(s: State) -> Effects:
    """DFLASH runs without DP attention up to 0.5.13; later it and DSPARK need the DP LM head for it."""
    if s.speculative_algorithm not in ("DFLASH", "DSPARK") or s.attention_dp <= 1:
        return
    flags = ("speculative_algorithm", "enable_dp_attention", "enable_dp_lm_head")
    if s.version <= (0, 5, 13):
        yield Refuse("DFLASH speculation and DP attention exclude each other", flags[:2])
    elif s.version >= (0, 5, 23) and not s.enable_dp_lm_head:
        yield Refuse(
            f"{s.speculative_algorithm} speculation with attention data parallelism needs --enable-dp-lm-head",
            flags,
            ("--enable-dp-lm-head", "--attn-dp-size 1"),
        )


@rule("speculative.dspark_draft", Stage.SPECULATIVE, since="0.5.23", source="speculative_hook.py:_handle_dspark")
def dspark_draft(s: State) -> Effects:
    """DSPARK needs a draft, unless the checkpoint has one: its config says so, or a folder `dspark` lies in it."""
    missing = s.speculative_draft_model_path is None and not s.model.bundles_draft
    if s.speculative_algorithm == "DSPARK" and s.model.known and missing and not _draft_folder(s):
        yield Refuse(
            "DSPARK speculation needs --speculative-draft-model-path",
            ("speculative_algorithm", "speculative_draft_model_path"),
            ("name --speculative-draft-model-path",),
        )


def _draft_folder(s: State) -> bool:
    """Whether the model's folder, as far as it lies on this machine, holds a draft."""
    model = s.user.get("model_path")
    return isinstance(model, str) and (Path(model) / "dspark" / "config.json").is_file()


@rule("speculative.block_tokens", Stage.SPECULATIVE, since="0.5.13", source=f"{SOURCE} (DFLASH, DSPARK)")
def block_tokens(s: State) -> Effects:
    """The block that DFLASH and DSPARK verify: as named, else (where the draft's config says nothing) 16 and 8."""
    algorithm = s.speculative_algorithm
    if algorithm not in ("DFLASH", "DSPARK"):
        return
    block = s.user.get(f"speculative_{algorithm.lower()}_block_size")
    tokens = s.speculative_num_draft_tokens
    if not isinstance(block, int) or block <= 0:
        if tokens is None:
            yield Fill("speculative_num_draft_tokens", 16 if algorithm == "DFLASH" else 8)
        return
    verified = block if algorithm == "DFLASH" else block + 1
    if tokens not in (None, verified):
        yield Refuse(
            f"--speculative-num-draft-tokens {tokens} and a block of {block} differ: {algorithm} verifies {verified}",
            ("speculative_num_draft_tokens", f"speculative_{algorithm.lower()}_block_size"),
            (f"--speculative-num-draft-tokens {verified}",),
        )
    yield Fill("speculative_num_draft_tokens", verified)


@rule("speculative.window_of_a_block", Stage.SPECULATIVE, since="0.5.13", source=f"{SOURCE} (DFLASH)")
def window_of_a_block(s: State) -> Effects:
    """The draft's window holds the block that DFLASH verifies, as far as that is named."""
    window = s.user.get("speculative_draft_window_size")
    block = s.user.get("speculative_num_draft_tokens") or s.user.get("speculative_dflash_block_size")
    if s.speculative_algorithm != "DFLASH" or not isinstance(window, int) or not isinstance(block, int):
        return
    if 0 < window < block:
        yield Refuse(
            f"--speculative-draft-window-size {window} is below the block of {block} tokens",
            ("speculative_draft_window_size", "speculative_num_draft_tokens"),
            (f"--speculative-draft-window-size {block}",),
        )


@rule("speculative.limits_running_requests", Stage.SPECULATIVE, source=SOURCE)
def limits_running_requests(s: State) -> Effects:
    """Speculative decoding caps running requests at 48 unless --max-running-requests is given."""
    limited = (*_EAGLE_LIKE, "NGRAM", "DFLASH", "DSPARK", "FROZEN_KV_MTP")
    if s.speculative_algorithm in limited and s.max_running_requests is None:
        yield Assign(
            "max_running_requests", 48, "the default of speculative decoding; name a value to serve more requests"
        )


@rule("speculative.eagle", Stage.SPECULATIVE, source=SOURCE)
def eagle(s: State) -> Effects:
    """EAGLE-like algorithms run without mixed chunks; STANDALONE without DP attention."""
    if s.speculative_algorithm not in _EAGLE_LIKE:
        return
    if s.speculative_algorithm == "STANDALONE" and s.attention_dp > 1:
        yield Refuse(
            "STANDALONE speculation and DP attention exclude each other",
            ("speculative_algorithm", "enable_dp_attention"),
        )
    if s.enable_mixed_chunk and not _mixed_chunk(s):
        yield Assign("enable_mixed_chunk", False, "speculative decoding runs without mixed chunks")


@rule("speculative.overlap", Stage.SPECULATIVE, until="0.5.19", source=SOURCE)
def overlap(s: State) -> Effects:
    """Which EAGLE-like configurations run without the overlap scheduler; SGLANG_ENABLE_SPEC_V2 decides in part."""
    if s.speculative_algorithm not in _EAGLE_LIKE:
        return
    default = "1" if s.version >= (0, 5, 11) else "0"
    v2 = str(s.env.get("SGLANG_ENABLE_SPEC_V2", default)).lower() in ("1", "true", "yes")
    tree = (s.speculative_eagle_topk or 1) > 1
    if s.version <= (0, 5, 10):
        yield Assign("disable_overlap_schedule", not v2, "SGLANG_ENABLE_SPEC_V2 decides about the overlap scheduler")
        if v2 and tree:
            yield Refuse(
                "SGLANG_ENABLE_SPEC_V2 takes --speculative-eagle-topk 1",
                ("speculative_eagle_topk", "env.SGLANG_ENABLE_SPEC_V2"),
                ("--speculative-eagle-topk 1",),
            )
    elif not v2 or (tree and s.version <= (0, 5, 12)):
        yield Assign("disable_overlap_schedule", True, "this kind of drafting runs without the overlap scheduler")


def _mixed_chunk(s: State) -> bool:
    """Whether mixed chunks may stay on with this algorithm (`SpeculativeAlgorithm.supports_mixed_chunk`)."""
    return s.version >= (0, 5, 20) and s.speculative_algorithm in ("EAGLE", "EAGLE3", "DFLASH", "DSPARK")


@rule("speculative.eagle_parameters", Stage.SPECULATIVE, source=SOURCE)
def eagle_parameters(s: State) -> Effects:
    """Steps, top-k and draft tokens are given together or not at all; a chain drafts steps + 1 tokens."""
    if s.speculative_algorithm not in _EAGLE_LIKE:
        return
    steps, topk, tokens = s.speculative_num_steps, s.speculative_eagle_topk, s.speculative_num_draft_tokens
    flags = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    if steps is None:
        if topk is not None or tokens is not None:
            yield Refuse(
                "speculative steps, top-k and draft tokens are given together or not at all", flags, ("name all three",)
            )
            return
        wide = s.model.architecture in _LLAMA_LIKE and s.speculative_algorithm != "STANDALONE"
        steps, topk, tokens = (5, 4, 8) if wide else (3, 1, 4)
        for field, value in zip(flags, (steps, topk, tokens), strict=True):
            yield Fill(field, value)
    if topk is None:
        yield Refuse("--speculative-num-steps needs --speculative-eagle-topk", flags, ("name all three",))
        return
    if topk == 1 and tokens != steps + 1:
        yield Assign("speculative_num_draft_tokens", steps + 1, "a chain drafts steps + 1 tokens")


@rule("speculative.tree_backends", Stage.SPECULATIVE, source=SOURCE)
def tree_backends(s: State) -> Effects:
    """A tree of drafts (top-k above 1) needs an attention backend that can verify it."""
    topk = s.speculative_eagle_topk
    if s.speculative_algorithm not in _EAGLE_LIKE or topk is None or topk <= 1:
        return
    flags = ("speculative_eagle_topk", "attention_backend", "page_size")
    phases = s.attention_backends if s.version >= (0, 5, 20) else (*s.attention_backends, s.attention_backend)
    if "trtllm_mha" in phases:
        yield Refuse(
            "attention backend trtllm_mha takes --speculative-eagle-topk 1", flags, ("--speculative-eagle-topk 1",)
        )
    allowed = ("flashinfer", "fa3") if s.version <= (0, 5, 12) else ("flashinfer", "fa3", "triton")
    if (s.page_size or 1) > 1 and s.attention_backend not in allowed:
        yield Refuse(
            f"--speculative-eagle-topk {topk} with pages of {s.page_size} tokens fails on {s.attention_backend}",
            flags,
            ("--page-size 1", *(f"--attention-backend {name}" for name in allowed)),
        )


@rule("speculative.ngram", Stage.SPECULATIVE, since="0.5.3", source=SOURCE)
def ngram(s: State) -> Effects:
    """NGRAM drafts a tree, without mixed chunks and without DP attention."""
    if s.speculative_algorithm != "NGRAM":
        return
    if s.version <= (0, 5, 13):
        yield Assign("disable_overlap_schedule", True, "NGRAM speculation runs without the overlap scheduler")
    yield Assign("enable_mixed_chunk", False, "NGRAM speculation runs without mixed chunks")
    yield Assign("speculative_eagle_topk", s.speculative_ngram_max_bfs_breadth, "NGRAM drafts a tree of this breadth")
    if s.speculative_num_draft_tokens is None:
        yield Fill("speculative_num_draft_tokens", 12)
    if s.version >= (0, 5, 16) and s.speculative_num_steps is None:
        yield Fill("speculative_num_steps", s.speculative_num_draft_tokens // max(1, s.speculative_eagle_topk))
    if s.speculative_eagle_topk > 1 and (s.page_size or 1) > 1 and s.attention_backend != "flashinfer":
        yield Refuse(
            f"NGRAM speculation with pages of {s.page_size} tokens needs attention backend flashinfer",
            ("speculative_algorithm", "page_size", "attention_backend"),
            ("--page-size 1", "--attention-backend flashinfer"),
        )
    if s.attention_dp > 1:
        yield Refuse(
            "NGRAM speculation and DP attention exclude each other", ("speculative_algorithm", "enable_dp_attention")
        )


@rule("speculative.no_mixed_chunk", Stage.CHECK, source="server_args.py:check_server_args")
def no_mixed_chunk(s: State) -> Effects:
    """Mixed chunks and speculative decoding exclude each other."""
    if s.speculative_algorithm is not None and s.enable_mixed_chunk and not _mixed_chunk(s):
        yield Refuse(
            "--enable-mixed-chunk and speculative decoding exclude each other",
            ("enable_mixed_chunk", "speculative_algorithm"),
        )


@rule(
    "speculative.adaptive_steps",
    Stage.SPECULATIVE,
    since="0.5.13",
    source="speculative/adaptive_spec_params.py:validate_adaptive_initial_steps",
)
def adaptive_steps(s: State) -> Effects:
    """Adaptive drafting begins with a number of steps that it may choose later."""
    candidates = (1, 3, 7) if s.version <= (0, 5, 13) else (0, 1, 3, 5, 7)
    steps = s.speculative_num_steps
    if not s.speculative_adaptive or s.speculative_algorithm not in ("EAGLE", "EAGLE3"):
        return
    if s.speculative_eagle_topk != 1:
        yield Assign("speculative_adaptive", False, "it is for EAGLE chains")
    elif steps not in candidates and "speculative_adaptive_config" not in s.user:
        yield Refuse(
            f"--speculative-adaptive begins with {steps} steps, which are none of {', '.join(map(str, candidates))}",
            ("speculative_adaptive", "speculative_num_steps"),
            tuple(f"--speculative-num-steps {number}" for number in candidates),
        )
