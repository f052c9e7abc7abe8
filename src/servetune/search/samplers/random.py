"""Uniform random sampling: the yardstick."""

from __future__ import annotations

from optuna.samplers import BaseSampler, RandomSampler

from servetune.core.space import Frozen, SearchSpace


class Settings(Frozen):
    """Takes no settings."""


def create(settings: Settings, seed: int, space: SearchSpace) -> BaseSampler:
    """Ignores everything that was measured."""
    return RandomSampler(seed=seed)
