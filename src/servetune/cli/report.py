"""`servetune report`."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from servetune.cli._options import console, json_option, open_store, storage_option
from servetune.cli._seen import seen
from servetune.console import duration, tokens_per_s
from servetune.core.quantities import counted
from servetune.report import SIMULATED, Ranked, Report, build
from servetune.tuner.doubts import MARK, NOT_VALID
from servetune.tuner.effects import NO_DIFFERENCE

EXAMPLE = """
\b
Example:
  servetune report quickstart
"""


#: Warnings that a person is shown; of the best configurations first.
WARNINGS_SHOWN = 8

#: The place in one server's log, which differs between servers that say the same.
_LINE = re.compile(r"^line \d+: ")


@click.command(epilog=EXAMPLE)
@click.argument("study")
@storage_option
@json_option
def command(study: str, storage: str, as_json: bool) -> None:
    """Rank STUDY's configurations against the baseline at each concurrency level; say what failed and why."""
    with open_store(storage) as store:
        found, learned = seen(store, study), store.learned(withdrawn=True)
        report = build(found.study, found.records, dict(found.node_s), store.answers(study), learned)
    if as_json:
        click.echo(report.model_dump_json(indent=2))
    else:
        show(report, console())


def show(report: Report, shown: Console) -> None:
    """Print the report for a person."""
    reason = f" ({report.reason})" if report.reason else ""
    shown.print(f"study {report.study}: {report.state}{reason}", markup=False, soft_wrap=True)
    if report.simulated:
        shown.print(SIMULATED, markup=False, soft_wrap=True)
    _unknown_first(report, shown)
    if report.ranking:
        shown.print(_ranking(report))
    if any(ranked.not_valid or ranked.confirmation_not_valid for ranked in report.ranking):
        shown.print(NOT_VALID, markup=False, soft_wrap=True)
    _front(report, shown)
    for ranked in report.ranking:
        if ranked.note:
            shown.print(f"trial {ranked.trial} {ranked.note}", markup=False, soft_wrap=True)
    if report.no_effect:
        trials = ", ".join(map(str, report.no_effect))
        text = (
            f"No effect seen in one launch (every level within {NO_DIFFERENCE:.0%} of the baseline's): trial {trials}"
        )
        shown.print(text, markup=False, soft_wrap=True)
    shown.print(f"Verdict: {report.verdict}.", markup=False, soft_wrap=True)
    _answers(report, shown)
    _notices(report, shown)
    _failures(report, shown)
    _learned(report, shown)
    _costs(report, shown)
    for warning in report.warnings[:WARNINGS_SHOWN]:
        shown.print(f"warning: {warning}", markup=False, soft_wrap=True)
    if (more := len(report.warnings) - WARNINGS_SHOWN) > 0:
        shown.print(f"… and {counted(more, 'more warning')}: `--json` has them all", markup=False)


def _ranking(report: Report) -> Table:
    levels = sorted({level for ranked in report.ranking for level in ranked.levels})
    table = Table("trial", report.unit, "gain", *(f"c={level}" for level in levels), "sets", box=None, pad_edge=False)
    for ranked in report.ranking:
        table.add_row(*_row(report, ranked, levels))
    return table


def _front(report: Report, shown: Console) -> None:
    """The Pareto front of two objectives."""
    if not report.front:
        return
    shown.print("Pareto front (none other is better in both):", markup=False)
    table = Table("trial", *report.objectives, "export --pick", box=None, pad_edge=False)
    for point in report.front:
        words = (str(point.trial), tokens_per_s(point.rate), f"{point.latency_s:.4g}", ", ".join(point.picks))
        table.add_row(*(Text(word) for word in words))
    shown.print(table)


def _row(report: Report, ranked: Ranked, levels: list[int]) -> list[Text]:
    base = report.baseline is not None and ranked.trial == report.baseline.trial
    mark = " (baseline)" if base else " *" if ranked.trial == report.winner else ""
    gain = ""
    if report.baseline is not None and report.baseline.value and not base:
        gain = f"{100 * (ranked.value / report.baseline.value - 1):+.1f} %"
    cells = [_cell(ranked, level) for level in levels]
    words = [f"{ranked.trial}{mark}", tokens_per_s(ranked.value), gain, *cells, ranked.sets]
    return [Text(word) for word in words]


def _answers(report: Report, shown: Console) -> None:
    """How the winner's answers compare with the baseline's."""
    agreement = None if report.winner is None else report.answers.get(report.winner)
    base = report.baseline is not None and report.winner == report.baseline.trial
    if agreement is None or base or not agreement.figures:
        return
    figures = agreement.figures
    told = [
        f"{name} {figures[f'{key}_match']:.0%} of an answer (the baseline's own {figures[f'{key}_baseline_match']:.0%})"
        for name, key in (("alone", "idle"), ("under load", "under_load"))
        if f"{key}_match" in figures
    ]
    if "tasks" in figures:
        told.append(
            f"{figures['tasks_solved']:.0f} of {figures['tasks']:.0f} tasks solved, no significant drop "
            f"(one of {figures['tasks_detectable_drop']:.0%} would be noticed 4 times in 5)"
        )
    shown.print(f"Its answers agree with the baseline's: {'; '.join(told)}.", markup=False, soft_wrap=True)


def _notices(report: Report, shown: Console) -> None:
    """What the servers' logs said of ranked configurations: options without effect, decode outside graphs, …"""
    trials: dict[str, list[int]] = defaultdict(list)
    for ranked in report.ranking:
        for text in ranked.notices:
            trials[_LINE.sub("", text)].append(ranked.trial)
    if trials:
        shown.print("From the logs of these servers:", markup=False)
    for text, numbers in trials.items():
        shown.print(f"  trial {', '.join(map(str, numbers))}: {text}", markup=False, soft_wrap=True)


def _cell(ranked: Ranked, level: int) -> str:
    value = tokens_per_s(ranked.levels.get(level)) + (MARK if level in ranked.not_valid else "")
    gain = ranked.gains.get(level)
    return value if gain is None or gain == 0 else f"{value} ({100 * gain:+.0f} %)"


def _unknown_first(report: Report, shown: Console) -> None:
    for group in report.failures:
        if group.slug == "unknown":
            trials = ", ".join(map(str, group.trials))
            shown.print(
                f"UNKNOWN CRASH, trial {trials}: {group.message}; please look: {group.evidence}",
                markup=False,
                soft_wrap=True,
            )


def _failures(report: Report, shown: Console) -> None:
    if report.failures:
        more = f"servetune diagnose {shlex.quote(report.study)} --trial N"
        shown.print(f"What failed (why, and what to do next: `{more}`):", markup=False, soft_wrap=True)
    for group in report.failures:
        trials = ", ".join(map(str, group.trials))
        shown.print(f"  {group.slug} in {group.phase}, trial {trials}: {group.message}", markup=False, soft_wrap=True)
        if group.evidence and group.evidence not in group.message:
            shown.print(f"      {group.evidence[:300]}", markup=False, soft_wrap=True)
    if report.rejected:
        shown.print("Rejected before any launch:", markup=False, soft_wrap=True)
    for reason, count in report.rejected.items():
        shown.print(f"  {count} × {reason}", markup=False, soft_wrap=True)


def _learned(report: Report, shown: Console) -> None:
    """What crashes taught, with the trials that did, and what turned out wrong."""
    if report.learned:
        shown.print("Learned from crashes (`servetune knowledge export` passes it on):", markup=False, soft_wrap=True)
    for one in report.learned:
        if one.withdrawn:
            shown.print(f"  withdrawn: {one.says}; {one.withdrawn}", markup=False, soft_wrap=True)
            continue
        own = [str(lesson.trial) for lesson in one.lessons if lesson.study == report.study]
        whence = f"trial {', '.join(own)}" if own else "an earlier study"
        saved = f", turned down {counted(one.rejections, 'proposal')}" if one.rejections else ""
        told = f"  {one.says} ({one.slug}, {whence}, confidence {one.confidence:.0%}{saved})"
        shown.print(told, markup=False, soft_wrap=True)


def _costs(report: Report, shown: Console) -> None:
    total_s = sum(report.node_s.values())
    if total_s:
        parts = ", ".join(f"{purpose} {duration(spent_s)}" for purpose, spent_s in report.node_s.items())
        shown.print(f"Node time: {duration(total_s)} ({parts})", markup=False, soft_wrap=True)
