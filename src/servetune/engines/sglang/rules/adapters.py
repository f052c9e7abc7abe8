"""LoRA adapters: what the server has to know before any is loaded, and how many it holds."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Effects, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State

SOURCE = "server_args.py:check_lora_server_args; 0.5.20+: arg_groups/lora_hook.py:check_lora_server_args"
_PER_BATCH = 8  # the default of --max-loras-per-batch
_CHUNKS = (16, 32, 64, 128)


@rule("serving.lora_shapes", Stage.CHECK, source=SOURCE)
def lora_shapes(s: State) -> Effects:
    """Without adapters to load, LoRA needs to know their largest rank and the modules that they touch."""
    named = s.user.get("max_lora_rank") and s.user.get("lora_target_modules")
    if s.enable_lora and not s.lora_paths and not named:
        yield Refuse(
            "--enable-lora without --lora-paths needs --max-lora-rank and --lora-target-modules",
            ("enable_lora",),
            ("name --max-lora-rank and --lora-target-modules", "name --lora-paths"),
        )


@rule("adapters.held", Stage.CHECK, since="0.5.9", source=SOURCE)
def held(s: State) -> Effects:
    """As many adapters fit into memory as into a batch; overlapped loading pins at most twice that many."""
    batch, loaded = s.user.get("max_loras_per_batch", _PER_BATCH), s.user.get("max_loaded_loras")
    if not isinstance(batch, int) or not isinstance(loaded, int | None):
        return
    if batch <= 0:
        yield Refuse("--max-loras-per-batch must be positive", ("max_loras_per_batch",), (str(_PER_BATCH),))
    if not s.enable_lora:
        return
    if loaded is not None and loaded < batch:
        yield Refuse(
            f"--max-loaded-loras {loaded} is below --max-loras-per-batch {batch}",
            ("max_loaded_loras", "max_loras_per_batch"),
            (f"--max-loaded-loras {batch}", f"--max-loras-per-batch {loaded}"),
        )
    if s.user.get("enable_lora_overlap_loading") and (loaded is None or loaded > 2 * batch):
        yield Refuse(
            f"--enable-lora-overlap-loading needs --max-loaded-loras, at most {2 * batch}: twice --max-loras-per-batch",
            ("enable_lora_overlap_loading", "max_loaded_loras", "max_loras_per_batch"),
            (f"--max-loaded-loras {2 * batch}",),
        )


@rule("adapters.chunk", Stage.CHECK, since="0.5.9", source=SOURCE)
def chunk(s: State) -> Effects:
    """The kernel's chunk is a power of two from 16 to 128."""
    size = s.user.get("max_lora_chunk_size")
    if s.enable_lora and isinstance(size, int) and size not in _CHUNKS:
        yield Refuse(
            f"--max-lora-chunk-size {size} is none of {', '.join(map(str, _CHUNKS))}",
            ("max_lora_chunk_size",),
            tuple(map(str, _CHUNKS)),
        )


@rule("adapters.all_modules", Stage.CHECK, since="0.5.9", source=SOURCE)
def all_modules(s: State) -> Effects:
    """`all` stands alone among the target modules."""
    modules = str(s.user.get("lora_target_modules") or "").split()
    if s.enable_lora and "all" in modules and len(set(modules)) > 1:
        yield Refuse("--lora-target-modules names all and others; all stands alone", ("lora_target_modules",), ("all",))


@rule("adapters.drafts", Stage.CHECK, since="0.5.9", source=f"{SOURCE}, check_lora_speculative_compatibility")
def drafts(s: State) -> Effects:
    """Up to 0.5.13 adapters work with NGRAM drafts only, in 0.5.23 with most others."""
    if not s.enable_lora or s.speculative_algorithm is None or (0, 5, 13) < s.version < (0, 5, 23):
        return
    allowed = ("NGRAM",) if s.version <= (0, 5, 13) else ("NGRAM", "EAGLE", "EAGLE3", "DFLASH", "DSPARK")
    if s.speculative_algorithm not in allowed:
        yield Refuse(
            f"--enable-lora does not work with --speculative-algorithm {s.speculative_algorithm}",
            ("enable_lora", "speculative_algorithm"),
            tuple(f"--speculative-algorithm {name}" for name in allowed),
        )
