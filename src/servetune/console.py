"""The live view of a running study; plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from servetune.core.benchmark import Progress
from servetune.core.engine import Violation
from servetune.core.events import (
    ConfirmationStarted,
    Event,
    LevelDone,
    LevelProgress,
    LogLine,
    Note,
    PhaseReached,
    RunEnded,
    Step,
    StudyOpened,
    TrialEnded,
    TrialStarted,
)
from servetune.core.quantities import counted
from servetune.core.study import StudySpec
from servetune.core.trial import RunPurpose, TrialRecord, TrialState

NOTES_SHOWN = 4
#: Proposals in a row that one rule rejects: so many are shown, the others counted.
REJECTIONS_SHOWN = 3


def duration(seconds: float) -> str:
    """Seconds as `43 s`, `12 min` or `3.4 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def tokens_per_s(value: float | None) -> str:
    """A throughput with three significant digits or more; `–` when there is none."""
    return "–" if value is None else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


class Standing:
    """What the events so far add up to; both views draw from it."""

    def __init__(self) -> None:
        self.spec: StudySpec | None = None
        self.simulated = False
        self.node = ""
        self.node_s = 0.0
        self.records: dict[int, TrialRecord] = {}
        self.run_s: list[float] = []
        self.trial: TrialStarted | None = None
        self.step = "opening the node"
        self.phase = ""
        self.since_s = time.monotonic()
        self.level: Progress | None = None
        self.levels: list[str] = []
        self.line = ""
        self.notes: list[str] = []
        self.confirming = 0

    @property
    def unit(self) -> str:
        """Of the objective's values."""
        return "" if self.spec is None else self.spec.objective.unit

    def take(self, event: Event) -> None:
        """Update from one event."""
        match event:
            case StudyOpened():
                self.spec, self.simulated, self.node_s = event.spec, event.facts.simulated, event.node_s
                self.node = f"{event.facts.node} {event.facts.host}".strip()
                self.records = {record.number: record for record in event.records}
                self.run_s = [run.node_s for record in event.records for run in record.runs if run.finished_at]
            case Note():
                self.notes = [*self.notes[1 - NOTES_SHOWN :], event.text]
            case Step():
                self._step(event)
            case TrialStarted():
                self.trial, self.levels, self.level, self.line, self.phase = event, [], None, "", ""
                self.since_s = time.monotonic()
            case PhaseReached():
                self.phase = event.phase.value
            case LogLine():
                self.line = event.text
            case LevelProgress():
                self.level = event.progress
            case LevelDone(measurement=m):
                self.levels.append(f"{m.concurrency}: {tokens_per_s(m.output_tokens_per_s)}")
            case RunEnded():
                self._run_ended(event)
            case TrialEnded():
                self.records[event.record.number] = event.record
            case ConfirmationStarted():
                self.confirming = event.launches

    def _step(self, event: Step) -> None:
        self.step = event.name
        if event.name in ("sampling", "done"):
            self.trial, self.level = None, None

    def _run_ended(self, event: RunEnded) -> None:
        self.node_s = event.spent_s
        self.run_s.append(event.node_s)
        self.level = None
        if event.purpose is RunPurpose.CONFIRM:
            self.confirming = max(0, self.confirming - 1)

    @property
    def best(self) -> TrialRecord | None:
        """The complete trial with the highest value."""
        complete = [r for r in self.records.values() if r.state is TrialState.COMPLETE and r.value is not None]
        return max(complete, key=lambda r: (r.value or 0.0, -r.number), default=None)

    @property
    def baseline(self) -> TrialRecord | None:
        """The baseline, once it has ended."""
        return next((r for r in self.records.values() if r.baseline), None)

    def launched(self) -> int:
        """Trials that count against the budget."""
        counted = (TrialState.COMPLETE, TrialState.PRUNED)
        return sum(r.state in counted and bool(r.runs) for r in self.records.values())

    def failures(self) -> Counter[str]:
        """Failures by class; rejected and known configurations under words of their own."""
        found: Counter[str] = Counter()
        for record in self.records.values():
            if record.state is TrialState.REJECTED:
                found["rejected"] += 1
            elif record.duplicate_of is not None:
                found["known"] += 1
            elif record.failure is not None:
                found[record.failure.slug] += 1
        return found

    def remaining(self) -> str:
        """An honest estimate of the node time to the end: a range from the launches so far, or that there is none."""
        if self.spec is None or len(self.run_s) < 2:
            return "no estimate before two launches"
        mean = sum(self.run_s) / len(self.run_s)
        spread = (sum((s - mean) ** 2 for s in self.run_s) / (len(self.run_s) - 1)) ** 0.5
        confirm = self.spec.confirm
        launches = max(0, self.spec.budget.trials - self.launched()) + (
            self.confirming or (confirm.top + 1) * confirm.launches
        )
        margin = 2 * spread * (launches + launches**2 / len(self.run_s)) ** 0.5
        low, high = max(0.0, launches * mean - margin), launches * mean + margin
        if self.spec.budget.node_hours is not None:
            left_s = max(0.0, self.spec.budget.node_hours * 3600 - self.node_s)
            low, high = min(low, left_s), min(high, left_s)
        return f"{duration(low)} to {duration(high)} of node time at most (from {counted(len(self.run_s), 'launch')})"


class PlainView:
    """One line per thing that matters; for pipes, files and CI. No control codes."""

    def __init__(self, console: Console) -> None:
        self._console, self._standing = console, Standing()
        self._rejections = Counter[str]()  # by what rejects, since the last launch

    def on(self, event: Event) -> None:
        """Print the event when it matters."""
        self._standing.take(event)
        if isinstance(event, TrialEnded) and event.record.rejected:
            named = _rejecting(event.record.rejected[0])
            self._rejections[named] += 1
            if self._rejections[named] > REJECTIONS_SHOWN:
                return
        elif isinstance(event, TrialStarted | ConfirmationStarted):
            self.count_rejections()
        self._print(self._lines(event))

    def count_rejections(self) -> None:
        """Print how many were rejected beyond those that were shown."""
        more = {
            named: count - REJECTIONS_SHOWN for named, count in self._rejections.items() if count > REJECTIONS_SHOWN
        }
        self._print(f"  … and {counted(count, 'more trial')} rejected {named}" for named, count in more.items())
        self._rejections.clear()

    def _print(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _lines(self, event: Event) -> Iterator[str]:
        match event:
            case StudyOpened(spec=spec, facts=facts):
                simulated = " (simulated: every number is invented by a model)" if facts.simulated else ""
                yield f"study {spec.study} on node {self._standing.node}{simulated}"
            case Note():
                yield ("warning: " if event.warning else "") + event.text
            case TrialStarted():
                yield f"trial {event.trial} {event.purpose.value}: {event.overrides}"
            case LevelDone(measurement=m):
                yield f"  concurrency {m.concurrency}: {tokens_per_s(m.output_tokens_per_s)} tokens/s"
                yield from _first_warnings(m.warnings)
            case RunEnded() if event.failure is not None:
                yield f"  {event.failure.slug} in {event.failure.phase.value}: {event.failure.message}"
            case TrialEnded(record=record):
                yield f"  trial {record.number} {record.state.value}: {self._ending(record)}"
            case ConfirmationStarted():
                yield f"search over: {event.reason}; {counted(event.launches, 'launch')} to confirm the best"

    def _ending(self, record: TrialRecord) -> str:
        if record.state is TrialState.REJECTED:
            return "; ".join(violation.message for violation in record.rejected)
        if record.failure is not None:
            return f"{record.failure.slug}{self._sums()}"
        known = "" if record.duplicate_of is None else f" (known from trial {record.duplicate_of})"
        value = "" if record.value is None else f"{tokens_per_s(record.value)} {self._standing.unit}"
        return f"{value}{known}{self._sums()}"

    def _sums(self) -> str:
        best = self._standing.best
        lead = "" if best is None else f"; best so far trial {best.number}: {tokens_per_s(best.value)}"
        return f"{lead}; {duration(self._standing.node_s)} of node time spent"


def _rejecting(violation: Violation) -> str:
    """`by RULE`; a learned constraint has no name, so what it says stands for it."""
    if violation.layer != "learned":
        return f"by {violation.rule}"
    return f"because {violation.message.partition(': ')[0]}"


def _first_warnings(warnings: Sequence[str]) -> Iterator[str]:
    """The first warning of a level and how many more there are; the report and `--json` have all."""
    for warning in warnings[:1]:
        more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
        yield f"    warning: {warning}{more}"


class LiveView:
    """The same, drawn in place on a terminal."""

    def __init__(self) -> None:
        self._standing = Standing()

    def on(self, event: Event) -> None:
        """Take the event; the screen is redrawn by Rich at its own pace."""
        self._standing.take(event)

    def draw(self) -> RenderableType:
        """The whole view."""
        standing = self._standing
        title = f"servetune · {standing.spec.study if standing.spec else '…'}"
        if standing.simulated:
            title += " · simulated node: every number is invented by a model"
        return Panel(Group(_now(standing), _sums(standing), *_notes(standing)), title=title, title_align="left")


def _now(standing: Standing) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    if standing.trial is None:
        grid.add_row("now", standing.step)
        return grid
    trial, elapsed_s = standing.trial, time.monotonic() - standing.since_s
    what = "confirming trial" if trial.purpose is RunPurpose.CONFIRM else "trial"
    grid.add_row(
        "now", Text(f"{what} {trial.trial}: {standing.step} ({standing.phase or 'start'}), {duration(elapsed_s)}")
    )
    grid.add_row("sets", Text(trial.overrides, overflow="ellipsis", no_wrap=True))
    if standing.levels:
        grid.add_row("done", Text(" · ".join(standing.levels) + " tokens/s"))
    if (level := standing.level) is not None:
        bar = ProgressBar(total=max(level.expected, 1), completed=level.completed, width=30)
        speed = f"concurrency {level.concurrency} {level.stage}: {tokens_per_s(level.output_tokens_per_s)} tokens/s"
        load = Table.grid(padding=(0, 2))
        load.add_row(bar, Text(speed))
        grid.add_row("load", load)
    grid.add_row("log", Text(standing.line, style="dim", overflow="ellipsis", no_wrap=True))
    return grid


def _sums(standing: Standing) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    best, baseline, spec = standing.best, standing.baseline, standing.spec
    if best is not None:
        gain = ""
        if baseline is not None and baseline.value:
            ahead = 100 * ((best.value or 0) / baseline.value - 1)
            gain = f", {ahead:+.1f} % over the baseline ({tokens_per_s(baseline.value)})"
        grid.add_row("best", f"trial {best.number}: {tokens_per_s(best.value)} {standing.unit}{gain}")
    if failures := standing.failures():
        grid.add_row("failed", ", ".join(f"{count} × {slug}" for slug, count in failures.most_common()))
    if spec is not None:
        hours = f" of {spec.budget.node_hours:g} h" if spec.budget.node_hours else ""
        grid.add_row(
            "spent",
            f"{duration(standing.node_s)}{hours} of node time, "
            f"{standing.launched()} of {counted(spec.budget.trials, 'trial')}",
        )
    grid.add_row("left", standing.remaining())
    return grid


def _notes(standing: Standing) -> list[RenderableType]:
    return [Text(note, style="yellow") for note in standing.notes]


@contextmanager
def view(console: Console) -> Iterator[PlainView | LiveView]:
    """The view that fits the console: live on a terminal, lines elsewhere (and where TERM is dumb)."""
    if not console.is_terminal or console.is_dumb_terminal:
        plain = PlainView(console)
        try:
            yield plain
        finally:
            plain.count_rejections()
        return
    shown = LiveView()
    with Live(console=console, get_renderable=shown.draw, refresh_per_second=4, transient=True):
        yield shown
