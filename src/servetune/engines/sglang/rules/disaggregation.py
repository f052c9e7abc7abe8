"""Prefill and decode servers of a disaggregated pair: what each role switches off."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Assign, Effects, Stage, rule
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
