"""Never ends a trial early."""

from __future__ import annotations

from optuna.pruners import BasePruner, NopPruner

from servetune.core.space import Frozen


class Settings(Frozen):
    """Takes no settings."""


def create(settings: Settings) -> BasePruner:
    """Every level of every trial is measured."""
    return NopPruner()
