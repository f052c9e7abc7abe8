"""What flags of the server, and of servers in pairs, need: one line each."""

from __future__ import annotations

from servetune.engines.sglang.rules._needs import Need, below, beside, other_model, register, with_role, without
from servetune.engines.sglang.rules._state import State

_SERVING = "server_args.py:check_server_args; 0.5.20+: arg_groups/validation_hook.py, serving_hook.py"
_AMD = "kernel_plugins/amd/binding.py:handle_amd_monokernel"
_ROLES = (
    "server_args.py:_handle_encoder_disaggregation; 0.5.20+: arg_groups/pd_disaggregation_hook.py, "
    "model_hook.py:handle_language_model_only"
)
_ENCODERS_LISTED = """
    Qwen2VLForConditionalGeneration Qwen3VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration
    Qwen3VLMoeForConditionalGeneration Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration
    InternS2PreviewForConditionalGeneration Qwen3OmniMoeForConditionalGeneration Qwen2AudioForConditionalGeneration
    Qwen2_5OmniForConditionalGeneration Dots3NoteForCausalLM KimiVLForConditionalGeneration
    KimiK25ForConditionalGeneration KimiK3ForConditionalGeneration MiMoV2ForCausalLM Glm5NextForConditionalGeneration
    MiniMaxM3SparseForConditionalGeneration MuseSparkForConditionalGeneration
"""
_ENCODERS = frozenset(_ENCODERS_LISTED.split())
_LANGUAGE_ONLY_LISTED = """
    DeepseekV4ForCausalLM MuseGlimmerForConditionalGeneration Cosmos3ForConditionalGeneration
    Cosmos3EdgeForConditionalGeneration
"""
_LANGUAGE_ONLY = frozenset(_LANGUAGE_ONLY_LISTED.split())
_RADIX = "disaggregation_decode_enable_radix_cache"
_TRANSFER = "disaggregation_transfer_backend"
_REAL_DATA = ("none", "partial", "all")  # the parser works these choices out while it runs
_CAPTURING = ("EAGLE3", "DFLASH", "DSPARK")


def _algorithm(s: State) -> str:
    return str(s.speculative_algorithm or "NONE").upper()


def _one_worker(s: State) -> bool:
    return bool(s.tokenizer_worker_num == 1 or s.user.get("enable_http2"))


def _without_grpc(s: State) -> bool:
    return s.user.get("grpc_port") is None and "SGLANG_GRPC_PORT" not in s.env


def _closed_to_grpc(s: State) -> bool:
    if s.user.get("smg_grpc_mode") or s.user.get("grpc_mode"):
        return False
    keyed = s.user.get("api_key") or s.user.get("admin_api_key")
    return bool(keyed or s.user.get("encoder_only") or s.user.get("use_ray") or s.tokenizer_worker_num > 1)


def _pipelined_vmm(s: State) -> bool:
    return bool(s.user["mm_feature_transport"] == "cuda_vmm" and s.pp_size != 1)


def _canary_off(s: State) -> bool:
    return bool(s.user["kv_canary_sweep_interval"] > 0 and s.user.get("kv_canary", "none") == "none")


def _decodes(s: State) -> bool:
    return bool(s.disaggregation_mode == "decode")


def _moved_by(s: State) -> str:
    return str(s.user.get(_TRANSFER, "mooncake"))


register("configs/model_config.py:_validate_quantize_and_serve_config", "0.5.9", (
    Need("quantize_and_serve", lambda s: True, "a checkpoint that was quantized before (it is switched off in SGLang)"),
))  # fmt: skip
register(_SERVING, "0.5.9", (
    Need("model_impl", lambda s: s.user["model_impl"] == "mindspore", "an Ascend NPU for mindspore"),
))  # fmt: skip
register(_SERVING, "0.5.13", (
    Need("kv_canary_sweep_interval", _canary_off, "--kv-canary log or raise", ("kv_canary",)),
    Need("kv_canary_real_data", lambda s: s.user["kv_canary_real_data"] not in _REAL_DATA, "none, partial or all"),
    Need("asr_max_buffer_seconds", lambda s: s.user["asr_max_buffer_seconds"] <= 0, "a positive number"),
    Need("asr_max_concurrent_sessions", below("asr_max_concurrent_sessions", 1), "1 or more"),
    Need("pp_max_micro_batch_size", below("pp_max_micro_batch_size", 1), "1 or more"),
    Need("detokenizer_worker_num", below("detokenizer_worker_num", 1), "1 or more"),
))  # fmt: skip
register(_SERVING, "0.5.23", (
    Need("mm_processor_worker_num", below("mm_processor_worker_num", 0), "0 or more"),
    Need("mm_io_worker_num", below("mm_io_worker_num", 0), "0 or more"),
    Need("mm_preprocess_cache_size_mb", below("mm_preprocess_cache_size_mb", 0), "0 or more"),
    Need("prefill_decode_interval", below("prefill_decode_interval", 0), "0 or more"),
    Need("prefill_decode_interval_min_bs", below("prefill_decode_interval_min_bs", 0), "0 or more"),
    Need("sampling_mask_max_tokens", below("sampling_mask_max_tokens", 1), "1 or more"),
    Need("grpc_response_timeout_secs", lambda s: s.user["grpc_response_timeout_secs"] <= 0, "a positive number"),
    Need("sidecar_args", without("sidecar"), "--sidecar", ("sidecar",)),
    Need("enable_http_worker_reuseport", _one_worker, "--tokenizer-worker-num 2", ("tokenizer_worker_num",)),
    Need("sidecar", _without_grpc, "--grpc-port", ("grpc_port",)),
    Need("grpc_port", _closed_to_grpc, "one tokenizer worker, no API key and no --encoder-only", ("api_key",)),
    Need("enable_http2", beside("enable_ssl_refresh"), "no --enable-ssl-refresh", ("enable_ssl_refresh",)),
    Need("mm_feature_transport", _pipelined_vmm, "--pp-size 1 for cuda_vmm", ("pp_size",)),
    Need(
        "disable_fast_image_processor",
        lambda s: s.user.get("image_processor_backend", "auto") not in ("auto", "pil"),
        "--image-processor-backend auto or pil",
        ("image_processor_backend",),
    ),
    Need("enable_response_store", with_role, "no --disaggregation-mode", ("disaggregation_mode",)),
    Need(
        "return_aux_hidden_state_layer_ids",
        without("enable_return_aux_hidden_states"),
        "--enable-return-aux-hidden-states",
    ),
    Need(
        "enable_return_aux_hidden_states",
        lambda s: _algorithm(s) not in _CAPTURING,
        "--speculative-algorithm EAGLE3, DFLASH or DSPARK",
        ("speculative_algorithm",),
    ),
    Need("watermark_config", without("enable_watermark"), "--enable-watermark", ("enable_watermark",)),
    Need("enable_watermark", with_role, "no --disaggregation-mode", ("disaggregation_mode",)),
    Need(
        "enable_watermark",
        beside("enable_custom_logit_processor"),
        "no --enable-custom-logit-processor",
        ("enable_custom_logit_processor",),
        "watermark_processors",
    ),
))  # fmt: skip
register(_AMD, "0.5.23", (
    Need("enable_amd_monokernel", lambda s: True, "an AMD GPU"),
    Need("monokernel_backend", lambda s: s.user["monokernel_backend"] == "amd", "an AMD GPU for amd"),
))  # fmt: skip
register(_ROLES, "0.5.9", (
    Need("enable_prefix_mm_cache", without("encoder_only"), "--encoder-only", ("encoder_only",)),
    Need("encoder_only", beside("language_only"), "no --language-only", ("language_only",)),
    Need("encoder_only", with_role, "no --disaggregation-mode", ("disaggregation_mode",), "encoder_only_role"),
))  # fmt: skip
register(_ROLES, "0.5.9", (
    Need("language_only", without("encoder_urls"), "--encoder-urls", ("encoder_urls",), "language_only_urls"),
), until="0.5.9")  # fmt: skip
register(_ROLES, "0.5.13", (
    Need("encoder_only", other_model(_ENCODERS), "a model whose encoder stands alone", (), "encoder_only_model"),
    Need("language_only", other_model(_ENCODERS), "a model whose encoder stands alone"),
))  # fmt: skip
register(_ROLES, "0.5.13", (
    Need(
        _RADIX,
        lambda s: _decodes(s) and _moved_by(s) not in ("nixl", "mooncake", "mooncake_tcp"),
        "--disaggregation-transfer-backend nixl or mooncake",
        (_TRANSFER,),
        "decode_radix_cache_transfer",
    ),
    Need(
        _RADIX,
        lambda s: _decodes(s) and s.speculative_algorithm is not None,
        "no --speculative-algorithm",
        ("speculative_algorithm",),
        "decode_radix_cache_drafts",
    ),
), until="0.5.13")  # fmt: skip
register(_ROLES, "0.5.23", (
    Need(_RADIX, lambda s: _decodes(s) and _moved_by(s) == "fake", "another transfer backend than fake", (_TRANSFER,)),
    Need(
        _RADIX,
        lambda s: _decodes(s) and _algorithm(s) not in ("NONE", "DSPARK", "EAGLE", "EAGLE3", "NEXTN"),
        "speculative decoding by EAGLE or DSPARK, or none",
        ("speculative_algorithm",),
        "decode_radix_cache_algorithm",
    ),
    Need(
        "disaggregation_decode_host_receive_threshold",
        lambda s: not 0 <= s.user["disaggregation_decode_host_receive_threshold"] <= 1,
        "a number from 0 to 1",
    ),
    Need(
        "language_model_only", other_model(_LANGUAGE_ONLY), f"one of {', '.join(sorted(_LANGUAGE_ONLY))}",
    ),
    Need(
        "language_model_only",
        lambda s: with_role(s) and s.model.model_type != "deepseek_v41",
        "no --disaggregation-mode",
        ("disaggregation_mode",),
        "language_model_only_role",
    ),
))  # fmt: skip
