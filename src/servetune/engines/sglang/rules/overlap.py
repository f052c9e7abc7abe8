"""Two-batch and single-batch overlap."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Effects, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State

CHECK = "server_args.py:check_server_args; 0.5.20+: arg_groups/validation_hook.py:check_two_batch_overlap"


@rule("overlap.two_batch_needs_a2a", Stage.CHECK, since="0.5.9", source=CHECK)
def two_batch_needs_a2a(s: State) -> Effects:
    """Two-batch overlap hides an all-to-all, so it needs one."""
    if not s.enable_two_batch_overlap or s.moe_a2a_backend != "none":
        return
    if s.version >= (0, 5, 15) and s.attention_dp > 1:
        return
    yield Refuse(
        "--enable-two-batch-overlap needs an all-to-all backend, got --moe-a2a-backend none",
        ("enable_two_batch_overlap", "moe_a2a_backend"),
        ("drop --enable-two-batch-overlap", "--moe-a2a-backend deepep"),
    )


@rule("overlap.two_batch_excludes_enforced_fusion", Stage.CHECK, since="0.5.12", until="0.5.14", source=CHECK)
def two_batch_excludes_enforced_fusion(s: State) -> Effects:
    """Two-batch overlap and enforced shared-expert fusion exclude each other."""
    if s.enable_two_batch_overlap and s.enforce_shared_experts_fusion:
        yield Refuse(
            "--enable-two-batch-overlap and --enforce-shared-experts-fusion exclude each other",
            ("enable_two_batch_overlap", "enforce_shared_experts_fusion"),
        )
