"""Optuna's median rule, level by level."""

from __future__ import annotations

from optuna.pruners import BasePruner, MedianPruner
from pydantic import Field

from servetune.core.space import Frozen


class Settings(Frozen):
    """`startup_trials`: complete trials before any is ended; `warmup_levels`: levels that are always measured."""

    startup_trials: int = Field(default=5, ge=0)
    warmup_levels: int = Field(default=2, ge=0)


def create(settings: Settings) -> BasePruner:
    """End a trial whose level is below the median of the earlier trials at that level."""
    return MedianPruner(n_startup_trials=settings.startup_trials, n_warmup_steps=settings.warmup_levels)
