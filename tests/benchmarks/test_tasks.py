"""A user's own tasks: read, judged, compared with a stated power."""

import random

import pytest

from servetune.benchmarks._tasks import Task, compare_tasks, detectable_drop, read_tasks
from servetune.core.errors import SpecError


def test_tasks_are_read_and_judged(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"prompt": "2+2=", "expected": "4"}\n\n{"prompt": "Capital of France?", "expected": "Paris"}\n')
    two, paris = read_tasks(str(path))
    assert two.solved_by(" 4, of course")
    assert paris.solved_by("it is  PARIS.")
    assert not paris.solved_by("it is Lyon")
    assert Task("x", "a b").solved_by("A\n b")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no task"),
        ("{", "line 1 is not JSON"),
        ('{"prompt": "x", "expected": "y"}\n{"prompt": "x"}', "line 2: needs 'prompt' and 'expected'"),
        ('["x"]', "line 1: needs"),
        ('{"prompt": "", "expected": "y"}', "line 1: needs"),
    ],
)
def test_bad_files_name_the_line(tmp_path, text, words):
    path = tmp_path / "tasks.jsonl"
    path.write_text(text)
    with pytest.raises(SpecError, match=words):
        read_tasks(str(path))
    with pytest.raises(SpecError, match="cannot be read"):
        read_tasks(str(tmp_path / "absent"))


def test_a_few_lost_tasks_are_chance_and_many_are_not():
    baseline = [True] * 80 + [False] * 20
    assert not compare_tasks(baseline, [True] * 77 + [False] * 20 + [True] * 3).worse
    verdict = compare_tasks(baseline, [True] * 60 + [False] * 40)
    assert verdict.worse
    assert "60 of 100 tasks solved where the baseline solves 80" in verdict.text
    with pytest.raises(ValueError, match="tasks of the baseline"):
        compare_tasks(baseline, [True])


@pytest.mark.parametrize("count", [12, 20, 50, 100, 400, 1000])
def test_the_stated_power_is_the_real_one(count):
    """At the stated drop it is noticed 80 times in 100, some more where tasks are few; half of that drop rarely is."""
    baseline = [True] * count
    drop = detectable_drop(count)
    chance = random.Random(0)
    runs = 1000 if count <= 100 else 300

    def noticed(lost):
        return (
            sum(compare_tasks(baseline, [chance.random() >= lost for _ in baseline]).worse for _ in range(runs)) / runs
        )

    assert 0.75 <= noticed(drop) <= 0.97
    assert noticed(drop / 2) < 0.5
    assert f"{drop:.0%}" in compare_tasks(baseline, baseline).text


def test_too_few_tasks_notice_nothing_and_say_so():
    assert detectable_drop(5) == 1.0
    assert "too few to notice any drop" in compare_tasks([True] * 5, [False] * 5).text


def test_honest_tasks_raise_at_most_one_alarm_in_a_hundred():
    """Greedy answers near a tie flip: one task in ten is solved by chance, in the baseline as in the candidate."""
    chance = random.Random(1)
    alarms = 0
    for _ in range(1000):
        baseline, candidate = ([chance.random() < (0.5 if k % 10 == 0 else 0.9) for k in range(100)] for _ in range(2))
        alarms += compare_tasks(baseline, candidate).worse
    assert alarms <= 10
