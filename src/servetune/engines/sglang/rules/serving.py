"""Flags of the server around the engine: ports, TLS, logging, adapters, values that hold JSON."""

from __future__ import annotations

import json
import logging

from servetune.engines.sglang.rules._registry import Assign, Effects, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import NO_JSON, State, json_of
from servetune.engines.sglang.rules.graphs import graphs_off
from servetune.engines.sglang.rules.misc import CHECK

_PORTS = 65535


@rule(
    "serving.port_with_grpc",
    Stage.EARLY,
    since="0.5.11",
    until="0.5.15",
    source="server_args.py:_handle_deprecated_args (grpc_port)",
)
def port_with_grpc(s: State) -> Effects:
    """0.5.11 to 0.5.15 derive a gRPC port, 10000 above --port, whether it is used or not."""
    port = s.user.get("port")
    if isinstance(port, int) and "SGLANG_GRPC_PORT" not in s.env and not 1 <= port + 10000 <= _PORTS:
        yield Refuse(
            f"--port {port}: SGLang derives a gRPC port 10000 above it, which is beyond {_PORTS}",
            ("port",),
            (f"--port at most {_PORTS - 10000}", "env.SGLANG_GRPC_PORT"),
        )


@rule("serving.port", Stage.RUNTIME, layer="runtime", source="the checks accept it; the socket cannot be bound")
def port_in_range(s: State) -> Effects:
    """A port lies between 0 and 65535."""
    port = s.user.get("port")
    if isinstance(port, int) and not 0 <= port <= _PORTS:
        yield Refuse(f"--port {port} is no port; ports end at {_PORTS}", ("port",))


@rule("serving.tls", Stage.EARLY, since="0.5.10", source="server_args.py:_handle_ssl_validation; 0.5.20+: serving_hook")
def tls(s: State) -> Effects:
    """Key and certificate are given together, and the other TLS flags need both."""
    key, certificate = s.user.get("ssl_keyfile"), s.user.get("ssl_certfile")
    if key and certificate:
        return
    given = [name for name in ("ssl_keyfile", "ssl_certfile") if s.user.get(name)]
    others = () if given else ("ssl_ca_certs", "ssl_keyfile_password")
    given += [name for name in (*others, "enable_ssl_refresh") if s.user.get(name)]
    for name in given:
        yield Refuse(
            f"--{name.replace('_', '-')} needs both --ssl-certfile and --ssl-keyfile",
            (name,),
            ("name --ssl-certfile and --ssl-keyfile",),
        )


@rule("serving.log_level", Stage.EARLY, since="0.5.11", source="server_args.py:prepare_server_args")
def log_level(s: State) -> Effects:
    """The log level is one of Python's."""
    level = s.user.get("log_level")
    if isinstance(level, str) and not hasattr(logging, level.upper()):
        yield Refuse(f"--log-level {level} is no log level", ("log_level",), ("debug", "info", "warning", "error"))


@rule(
    "serving.log_level_late", Stage.RUNTIME, until="0.5.10", layer="runtime", source="utils/common.py:configure_logger"
)
def log_level_late(s: State) -> Effects:
    """The log level is one of Python's; up to 0.5.10 a wrong one ends the server after its checks."""
    return log_level(s)


@rule("serving.gc_threshold", Stage.CHECK, since="0.5.10", source=CHECK)
def gc_threshold(s: State) -> Effects:
    """The garbage collector has three generations."""
    given = str(s.user.get("gc_threshold") or "").split()
    if len(given) > 3:
        yield Refuse(f"--gc-threshold takes 1 to 3 numbers, got {len(given)}", ("gc_threshold",))


@rule("serving.metrics_files", Stage.CHECK, since="0.5.7", source=CHECK)
def metrics_files(s: State) -> Effects:
    """Metrics are written to a folder that is named."""
    if s.user.get("export_metrics_to_file") and not s.user.get("export_metrics_to_file_dir"):
        yield Refuse(
            "--export-metrics-to-file needs --export-metrics-to-file-dir",
            ("export_metrics_to_file",),
            ("name --export-metrics-to-file-dir",),
        )


@rule("serving.metric_buckets", Stage.CHECK, source=f"{CHECK} (validate_buckets_rule)")
def metric_buckets(s: State) -> Effects:
    """Buckets of a histogram: `default`, `custom` with numbers, or `tse` with middle, base and count."""
    for field in ("prompt_tokens_buckets", "generation_tokens_buckets"):
        kind, *numbers = str(s.user.get(field) or "default").split() or ["default"]
        wanted = {"default": 0, "tse": 3}.get(kind)
        if kind not in ("default", "custom", "tse") or (kind == "tse" and len(numbers) != wanted):
            yield Refuse(
                f"--{field.replace('_', '-')} begins with default, custom or tse (and then middle, base and count)",
                (field,),
                ("default", "tse 1000 2 8", "custom 10 100 1000"),
            )


@rule("serving.prefill_delay", Stage.EARLY, until="0.5.11", source="server_args.py:_handle_prefill_delayer_env_compat")
def prefill_delay(s: State) -> Effects:
    """Up to 0.5.11 the environment variable's own default of 30 wins over the flag."""
    field, named = "prefill_delayer_max_delay_passes", s.env.get("SGLANG_PREFILL_DELAYER_MAX_DELAY_PASSES")
    if s.user.get(field) is not None and named is None:
        yield Assign(field, 30, "SGLANG_PREFILL_DELAYER_MAX_DELAY_PASSES, 30 where it is not set, wins")


@rule("serving.multi_item_delimiter", Stage.CHECK, until="0.5.11", source=CHECK)
def multi_item_delimiter(s: State) -> Effects:
    """Scoring several items at once needs the whole prompt in one piece, and none of it cached."""
    if s.user.get("multi_item_scoring_delimiter") is None:
        return
    flag = "multi_item_scoring_delimiter"
    if not s.disable_radix_cache:
        yield Refuse(
            "--multi-item-scoring-delimiter needs --disable-radix-cache",
            (flag, "disable_radix_cache"),
            ("--disable-radix-cache",),
        )
    if s.chunked_prefill_size not in (-1, None):
        yield Refuse(
            "--multi-item-scoring-delimiter needs --chunked-prefill-size -1",
            (flag, "chunked_prefill_size"),
            ("--chunked-prefill-size -1",),
        )


@rule(
    "serving.multi_item",
    Stage.GRAPHS_LATE,
    since="0.5.13",
    source="server_args.py:_handle_multi_item_scoring; 0.5.20+: arg_groups/attention_hook.py:handle_multi_item_scoring",
)
def multi_item(s: State) -> Effects:
    """Scoring several items at once runs on flashinfer, without graphs, radix cache and chunks."""
    if not s.enable_mis:
        return
    reason = "--enable-mis"
    yield from graphs_off(s, reason)
    if s.version < (0, 5, 14):
        yield Assign("disable_piecewise_cuda_graph", True, reason)
    yield Assign("disable_radix_cache", True, reason)
    yield Assign("chunked_prefill_size", -1, reason)
    wrong = [name for name in s.attention_backends if name != "flashinfer"]
    if wrong and s.attention_backend is not None:
        yield Refuse(
            f"--enable-mis needs attention backend flashinfer, got {wrong[0]}",
            ("enable_mis", "attention_backend"),
            ("--attention-backend flashinfer",),
        )


@rule("serving.pdmux", Stage.CHECK, since="0.5.4", source=CHECK)
def pdmux(s: State) -> Effects:
    """Multiplexing prefill and decode excludes chunked prefill, pipelines, disaggregation and the overlap scheduler."""
    if not s.enable_pdmux:
        return
    chunk = s.chunked_prefill_size
    for wrong, flag, instead in (
        (s.pp_size != 1, "pp_size", "--pp-size 1"),
        (chunk != -1, "chunked_prefill_size", "--chunked-prefill-size -1"),  # the default, even unknown, chunks
        (s.disaggregation_mode != "null", "disaggregation_mode", "drop --disaggregation-mode"),
        (not s.disable_overlap_schedule, "disable_overlap_schedule", "--disable-overlap-schedule"),
    ):
        if wrong:
            yield Refuse(f"--enable-pdmux needs {instead}", ("enable_pdmux", flag), (instead,))


@rule("serving.model_override", Stage.MODEL_CONFIG, source="configs/model_config.py (json.loads of the override)")
def model_override(s: State) -> Effects:
    """What replaces entries of the model's config is a JSON object."""
    text = s.user.get("json_model_override_args")
    if not isinstance(text, str):
        return
    try:
        given = json.loads(text)
        wrong = f"got {text[:80]}" if given and not isinstance(given, dict) else None  # what is empty changes nothing
    except (ValueError, RecursionError) as error:
        wrong = str(error)
    if wrong is not None:
        yield Refuse(f"--json-model-override-args is no JSON object: {wrong}", ("json_model_override_args",), ("{}",))


@rule(
    "serving.mm_process_config", Stage.EARLY, since="0.5.11", source="server_args.py:_handle_multimodal; serving_hook"
)
def mm_process_config(s: State) -> Effects:
    """The processor's settings are an object per kind of input."""
    text = s.user.get("mm_process_config")
    given = json_of(text)
    if given is NO_JSON:
        return
    kinds = ("image", "video", "audio")
    wrong = given is not None and (
        not isinstance(given, dict) or any(not isinstance(given[kind], dict) for kind in kinds if kind in given)
    )
    if wrong:
        yield Refuse(
            f"--mm-process-config is a JSON object with one object per kind of input, got {str(text)[:80]}",
            ("mm_process_config",),
            ('{"image": {"max_pixels": 1048576}}',),
        )
