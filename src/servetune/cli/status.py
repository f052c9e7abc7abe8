"""`servetune status`."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from servetune.cli._options import console, json_option, open_store, storage_option
from servetune.cli._seen import UNFINISHED, Seen, seen, seen_alive
from servetune.console import duration, tokens_per_s
from servetune.core.study import StoredStudy, StudyRunState, StudySummary
from servetune.core.trial import TrialRecord, TrialState
from servetune.storage import StudyStore
from servetune.tuner.confirm import winner

EXAMPLE = """
\b
Example:
  servetune status
  servetune status quickstart --json
"""


@click.command(epilog=EXAMPLE)
@click.argument("study", required=False)
@storage_option
@json_option
def command(study: str | None, storage: str, as_json: bool) -> None:
    """Show all studies, or the trials of STUDY: their states, and the best so far."""
    with open_store(storage) as store:
        if study is None:
            _studies(store, as_json)
        else:
            _trials(seen(store, study), as_json)


def _studies(store: StudyStore, as_json: bool) -> None:
    summaries = [_as_it_is(store, summary) for summary in store.studies()]
    if as_json:
        click.echo(json.dumps([summary.model_dump(mode="json") for summary in summaries], indent=2))
        return
    if not summaries:
        click.echo(f"no studies yet in {store.url}; start one: `servetune start studies/quickstart.yaml`")
        return
    table = Table("study", "state", "trials", "best tokens/s", "started", box=None, pad_edge=False)
    for summary in summaries:
        counts = ", ".join(f"{count} {state.value}" for state, count in summary.trials.items() if count)
        table.add_row(summary.name, summary.state.value, counts, tokens_per_s(summary.best), summary.created_at)
    console().print(table)


def _as_it_is(store: StudyStore, summary: StudySummary) -> StudySummary:
    """A trial that a stopped tuner left unfinished waits to be run again."""
    state, counts = seen_alive(store, store.study(summary.name)).state, dict(summary.trials)
    if state is not StudyRunState.RUNNING and (unfinished := counts.pop(TrialState.RUNNING, 0)):
        counts[TrialState.WAITING] = counts.get(TrialState.WAITING, 0) + unfinished
    return summary.model_copy(update={"state": state, "trials": counts})


def _trials(found: Seen, as_json: bool) -> None:
    stored, records = found.study, found.records
    best = winner(records, stored.spec)
    if as_json:
        click.echo(json.dumps(document(stored, records, best), indent=2))
        return
    shown = console()
    open_s, spent_s = found.node_s.get(UNFINISHED, 0.0), sum(found.node_s.values())
    in_hand = f", of it {duration(open_s)} in a launch that has not ended" if open_s else ""
    shown.print(
        f"study {stored.name}: {found.state}, {duration(spent_s)} of node time{in_hand}", markup=False, soft_wrap=True
    )
    table = Table("trial", "state", "tokens/s", "class", "phase", "sets", box=None, pad_edge=False)
    for record in records:
        table.add_row(*_row(stored, record, best))
    shown.print(table)


def _row(stored: StoredStudy, record: TrialRecord, best: TrialRecord | None) -> list[Text]:
    mark = "*" if best is not None and best.number == record.number else ""
    fixed = stored.spec.space.fixed
    sets = " ".join(f"{k}={v}" for k, v in record.assignment.items() if fixed.get(k) != v)
    entry = trial_entry(record)
    words = (f"{record.number}{mark}", entry["state"], tokens_per_s(record.value), entry["class"], entry["phase"], sets)
    return [Text("" if word is None else str(word)) for word in words]


def document(stored: StoredStudy, records: tuple[TrialRecord, ...], best: TrialRecord | None) -> dict[str, Any]:
    """What `--json` prints: `{study, state, best, trials: [{number, state, value, phase, class}]}`."""
    return {
        "study": stored.name,
        "state": stored.state.value,
        "best": None if best is None else {"number": best.number, "value": best.value},
        "trials": [trial_entry(record) for record in records],
    }


def trial_entry(record: TrialRecord) -> dict[str, Any]:
    """One trial for scripts."""
    failure = record.failure
    return {
        "number": record.number,
        "state": record.state.value,
        "value": record.value,
        "phase": None if failure is None else failure.phase.value,
        "class": None if failure is None else failure.slug,
        "baseline": record.baseline,
        "duplicate_of": record.duplicate_of,
        "repaired_from": record.repaired_from,
        "assignment": dict(record.assignment),
    }
