"""Preloaded by the fork server only: does once what every process does first (imports, ORM mappers, first proposal)."""

import logging

import optuna
from contracts import storage_examples  # noqa: F401 (for its imports)

logging.getLogger("optuna").setLevel(logging.WARNING)
_study = optuna.create_study(storage="sqlite://")
_trial = _study.ask()
_trial.suggest_categorical("x", [1, 2])
_study.tell(_trial, 1.0)
del _study, _trial
