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


def test_the_stated_power_is_the_real_one():
    baseline = [True] * 100
    drop = detectable_drop(100)
    chance = random.Random(0)
    noticed = sum(compare_tasks(baseline, [chance.random() >= drop for _ in baseline]).worse for _ in range(1000))
    assert noticed >= 780
    assert detectable_drop(5) == 1.0
    assert f"{drop:.0%}" in compare_tasks(baseline, baseline).text
