"""What the report marks in its ranking."""

import io

from rich.console import Console

from servetune.cli.report import show
from servetune.report import Ranked, Report


def report(not_valid) -> Report:
    ranked = Ranked(trial=0, value=5.0, levels={1: 5.0, 4: 9.0}, not_valid=not_valid, gains={}, sets="x=1")
    return Report(
        study="s",
        state="finished",
        simulated=True,
        baseline=ranked,
        ranking=(ranked,),
        unit="tokens/s",
        front=(),
        objectives=("output_tokens_per_s",),
        winner=0,
        verdict="the baseline stands",
        answers={},
        no_effect=(),
        failures=(),
        rejected={},
        node_s={},
        warnings=(),
    )


def shown(not_valid) -> str:
    out = io.StringIO()
    show(report(not_valid), Console(file=out, width=200))
    return out.getvalue()


def test_a_level_that_the_checks_doubt_is_marked_and_the_mark_explained():
    text = shown((4,))
    assert "9.0?" in text
    assert "5.0?" not in text
    assert "?: the honesty checks doubt it" in text


def test_nothing_is_marked_where_all_is_valid():
    assert "?" not in shown(())
