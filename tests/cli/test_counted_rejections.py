"""What a run of rejected proposals is counted under, in the plain view."""

import io

from rich.console import Console

from servetune.console import REJECTIONS_SHOWN, PlainView
from servetune.core.engine import Violation
from servetune.core.events import TrialEnded
from servetune.core.trial import TrialRecord, TrialState

LEARNED = Violation(
    rule="8e9811231c5daa50",
    layer="learned",
    flags=("tp-size",),
    message="tp-size 8 cannot work, learned from trial 1 of study s: comm_init in load: no NVLink",
)
RULE = Violation(rule="moe.ranks", layer="rule", flags=("tp-size",), message="16 ranks")


def last_line(violation: Violation, count: int) -> str:
    out = io.StringIO()
    view = PlainView(Console(file=out, width=200))
    for number in range(count):
        record = TrialRecord(number=number, state=TrialState.REJECTED, point={}, assignment={}, rejected=(violation,))
        view.on(TrialEnded(record=record, state=TrialState.REJECTED))
    view.count_rejections()
    return out.getvalue().splitlines()[-1]


def test_a_learned_constraint_is_named_in_words():
    told = last_line(LEARNED, REJECTIONS_SHOWN + 9)
    assert told == "  … and 9 more trials rejected because tp-size 8 cannot work, learned from trial 1 of study s"


def test_a_rule_has_a_name_and_one_more_is_one():
    assert last_line(RULE, REJECTIONS_SHOWN + 1) == "  … and 1 more trial rejected by moe.ranks"
