"""One sitting at a terminal: the view, the signals, and the sentence that ends it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from servetune.cli._options import console
from servetune.console import view
from servetune.core.study import StudySpec
from servetune.core.trial import TrialRecord, TrialState
from servetune.storage import StudyStore
from servetune.tuner.confirm import winner
from servetune.tuner.session import run_study
from servetune.tuner.stopping import Interrupted, StopRequest, signals

INTERRUPTED_STATUS = 130


def sit(spec: StudySpec, store: StudyStore) -> None:
    """Carry the study on; exit status 1 when it ended without a configuration that works, 130 when interrupted."""
    shown, stop = console(), StopRequest()
    try:
        with view(shown) as listener, signals(stop):
            reason = run_study(spec, store, listener, stop)
    except (Interrupted, KeyboardInterrupt):
        unfinished = [record.number for record in store.trials(spec.study) if record.state is TrialState.RUNNING]
        again = "".join(f"; trial {number} was in hand and is run again then" for number in unfinished)
        click.echo(f"stopped; go on with `servetune resume {spec.study}`{again}", err=True)
        sys.exit(INTERRUPTED_STATUS)
    shown.print(f"study {spec.study!r} is finished: {reason}", markup=False, soft_wrap=True)
    say_result(spec, store)


def say_result(spec: StudySpec, store: StudyStore) -> None:
    """What to do with a finished study; exit status 1 when nothing in it worked."""
    trials = store.trials(spec.study)
    if winner(trials, spec) is None:
        click.echo(f"error: {_none_worked(trials)}; `servetune report {spec.study}` says why", err=True)
        sys.exit(1)
    console().print(
        f"`servetune report {spec.study}` ranks what was measured, `servetune export {spec.study}` prints the command",
        markup=False,
        soft_wrap=True,
    )


def _none_worked(trials: Sequence[TrialRecord]) -> str:
    launched = sum(bool(trial.runs) for trial in trials)
    if launched < 2:
        return "the one configuration that was launched did not work" if launched else "no configuration was launched"
    return f"none of the {launched} configurations that were launched worked"
