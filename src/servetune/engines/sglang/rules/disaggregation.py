"""Prefill and decode servers of a disaggregated pair: what each role switches off."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Assign, Effects, Fill, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State

SOURCE = (
    "server_args.py:_handle_pd_disaggregation; 0.5.13+: arg_groups/pd_disaggregation_hook.py:handle_pd_disaggregation"
)
ROLES = "server_args.py, 0.5.20+: cuda_graph_hook.py:apply_cuda_graph_disaggregation_roles"


def _without_radix_cache(s: State) -> Effects:
    if s.disaggregation_mode != "decode":
        return
    if s.version >= (0, 5, 11) and s.user.get("disaggregation_decode_enable_radix_cache"):
        yield Assign("disable_radix_cache", False, "--disaggregation-decode-enable-radix-cache")
    else:
        yield Assign("disable_radix_cache", True, "a decode server gets its prefixes from the prefill server")


@rule("disaggregation.decode_cache", Stage.EARLY, since="0.5.11", source=SOURCE)
def decode_cache(s: State) -> Effects:
    """A decode server has no radix cache unless --disaggregation-decode-enable-radix-cache is given."""
    return _without_radix_cache(s)


@rule("disaggregation.decode_cache_to_0_5_10", Stage.CACHE, until="0.5.10", source=SOURCE)
def decode_cache_to_0_5_10(s: State) -> Effects:
    """A decode server has no radix cache; up to 0.5.10 that is settled after the model's own adjustments."""
    return _without_radix_cache(s)


@rule("disaggregation.prefill_graphs_to_0_5_10", Stage.CACHE, until="0.5.10", source=SOURCE)
def prefill_graphs_to_0_5_10(s: State) -> Effects:
    """A prefill server captures no CUDA graphs, unless piecewise ones are asked for."""
    if s.disaggregation_mode == "prefill" and not s.enable_piecewise_cuda_graph:
        yield Assign("disable_cuda_graph", True, "a prefill server captures no CUDA graphs")


@rule("disaggregation.peer_sizes", Stage.CACHE, until="0.5.10", source=SOURCE)
def peer_sizes(s: State) -> Effects:
    """Sizes of the decode server are told to the prefill server only, and one divides the other."""
    named = [field for field in ("disaggregation_decode_tp", "disaggregation_decode_dp") if field in s.user]
    if s.disaggregation_mode == "decode":
        for field in named:
            yield Refuse(
                f"--{field.replace('_', '-')} is told to the prefill server, not to the decode server",
                (field, "disaggregation_mode"),
                ("leave it out",),
            )
    other = s.user.get("disaggregation_decode_tp")
    if s.disaggregation_mode == "prefill" and s.user.get("disaggregation_prefill_pp") not in (None, s.pp_size):
        yield Assign("disaggregation_prefill_pp", s.pp_size, "a prefill server's own --pp-size wins")
    known = s.disaggregation_mode == "prefill" and isinstance(other, int) and other > 0
    if known and max(other, s.tp_size) % min(other, s.tp_size):
        yield Refuse(
            f"--disaggregation-decode-tp {other} and --tp-size {s.tp_size}: one has to divide the other",
            ("disaggregation_decode_tp", "tp_size"),
            (f"--disaggregation-decode-tp {s.tp_size}",),
        )


@rule("disaggregation.fake_transfer", Stage.EARLY, since="0.5.12", source=SOURCE)
def fake_transfer(s: State) -> Effects:
    """The transfer backend fake is for decode servers."""
    if s.disaggregation_mode == "prefill" and s.user.get("disaggregation_transfer_backend") == "fake":
        yield Refuse(
            "a prefill server has nobody to send to under --disaggregation-transfer-backend fake",
            ("disaggregation_transfer_backend", "disaggregation_mode"),
            ("mooncake", "nixl"),
        )


@rule("disaggregation.offload", Stage.CACHE, source="server_args.py:_handle_cache_compatibility; kv_cache_hook.py")
def offload(s: State) -> Effects:
    """Offloading of the decode server's cache is for decode servers, and from 0.5.12 on needs a storage backend."""
    flag = "disaggregation_decode_enable_offload_kvcache"
    if not s.user.get(flag):
        return
    if s.disaggregation_mode != "decode":
        yield Refuse(
            f"--{flag.replace('_', '-')} is for --disaggregation-mode decode",
            (flag, "disaggregation_mode"),
            ("leave it out", "--disaggregation-mode decode"),
        )
    elif s.version >= (0, 5, 12) and s.hicache_storage_backend is None:
        yield Refuse(
            f"--{flag.replace('_', '-')} needs --hicache-storage-backend",
            (flag, "hicache_storage_backend"),
            ("name --hicache-storage-backend",),
        )


@rule("disaggregation.load_balance", Stage.EARLY, since="0.5.9", source="server_args.py:_handle_load_balance_method")
def load_balance(s: State) -> Effects:
    """The automatic way to balance follows the decode server's choice on prefill servers, else takes turns."""
    method = s.user.get("load_balance_method")
    prefill = s.disaggregation_mode == "prefill"
    if method == "auto":
        yield Fill("load_balance_method", "follow_bootstrap_room" if prefill else "round_robin")
    elif method == "round_robin" and prefill and s.version < (0, 5, 10):
        yield Assign("load_balance_method", "follow_bootstrap_room", "prefill servers follow the bootstrap room")


@rule("disaggregation.prefill_graphs", Stage.EARLY, since="0.5.11", until="0.5.15", source=SOURCE)
def prefill_graphs(s: State) -> Effects:
    """A prefill server captures no CUDA graphs."""
    if s.disaggregation_mode == "prefill":
        yield Assign("disable_cuda_graph", True, "a prefill server captures no CUDA graphs")


@rule("disaggregation.graphs_of_role", Stage.GRAPHS_ROLE, since="0.5.16", source=ROLES)
def graphs_of_role(s: State) -> Effects:
    """A prefill server captures no decode graphs, a decode server no prefill graphs, unless the flags say so."""
    other = {"prefill": "decode", "decode": "prefill"}.get(s.disaggregation_mode)
    if other is None:
        return
    switches = ("disable_cuda_graph", f"disable_{other}_cuda_graph")
    field = f"cuda_graph_backend_{other}"
    if field not in s.user and not any(s.user.get(name) for name in switches):
        yield Assign(field, "disabled", f"a {s.disaggregation_mode} server runs no {other} batches")
