"""The correctness gate: 200 honest baselines against themselves, and configurations that answer nonsense."""

import json
import random

import pytest
from fakes.small_model import Fault, SmallModel
from fakes.streaming.process import exact_rate_server

from servetune.benchmarks import closed_loop
from servetune.benchmarks._agreement import compare, first_difference, matched_share, parts_far
from servetune.benchmarks._asking import read_answer
from servetune.core.answers import Answer, AnswerSet
from servetune.core.benchmark import Level, Workload
from servetune.core.clock import WallClock

PROMPTS, TOKENS = 24, 48


class Model:
    """A made-up model: one right answer per prompt, and near ties at which another batch size takes the other token."""

    def __init__(self, seed, knows=True):
        self.chance = random.Random(seed)
        self.knows = knows
        self.right = [[f"{prompt}-{at}" for at in range(TOKENS)] for prompt in range(PROMPTS)]

    def answer(self, prompt, parting, nonsense=False):
        """`parting`: probability per token of taking the other one of a near tie."""
        tokens = list(self.right[prompt])
        for at in range(TOKENS):
            if self.chance.random() < parting:
                tokens[at:] = [f"{prompt}-{at}-other"] + [f"x{self.chance.random()}" for _ in range(TOKENS - at - 1)]
                break
        if nonsense:
            tokens = [f"n{self.chance.randrange(10**6)}" for _ in range(TOKENS)]
        top = tuple(((f"{prompt}-{at}", -0.7), (f"{prompt}-{at}-other", -0.75)) for at in range(TOKENS))
        return Answer.model_construct(  # checking each of them would take most of the test's time
            tokens=tuple(tokens),
            asked=TOKENS,
            logprobs=(-0.7,) * TOKENS if self.knows else (),
            top=top if self.knows else (),
        )

    def answers(self, idle=0.002, loaded=0.01, nonsense_idle=False, nonsense_loaded=False):
        return AnswerSet.model_construct(
            idle=tuple(self.answer(prompt, idle, nonsense_idle) for prompt in range(PROMPTS)),
            loaded=tuple(self.answer(prompt, loaded, nonsense_loaded) for prompt in range(PROMPTS)),
            concurrency=256,
        )


@pytest.mark.parametrize(
    ("knows", "sets"), [(True, 1), (True, 2), (False, 1)], ids=["with log-probabilities", "two sets", "without"]
)
def test_200_honest_baselines_raise_at_most_two_false_alarms(knows, sets):
    alarms = 0
    for seed in range(200):
        model = Model(seed, knows)
        parting = 0.002 * (1 + seed % 10)  # from nearly exact to parting in most answers
        reference = [model.answers(parting / 3, parting) for _ in range(sets)]
        alarms += compare(reference, model.answers(parting / 3, parting)).wrong
    assert alarms <= 2


@pytest.mark.parametrize("knows", [True, False], ids=["with log-probabilities", "without"])
@pytest.mark.parametrize("where", ["nonsense_idle", "nonsense_loaded"])
def test_nonsense_is_always_caught(knows, where):
    for seed in range(30):
        model = Model(seed, knows)
        verdict = compare([model.answers()], model.answers(**{where: True}))
        assert verdict.wrong
        assert any(("under load" if where == "nonsense_loaded" else "idle") in text for text in verdict.findings)


def verdicts_on_small_models(models, launches, fault=None):
    """Verdicts on models whose low bits differ with the batch: each launch against two others of the same model."""
    for seed in range(models):
        model = SmallModel(seed, sharpness=3.0)
        honest = [model.answers(100 * seed + number) for number in range(launches)]
        judged = honest if fault is None else [model.answers(100 * seed + 99, fault)]
        for number, candidate in enumerate(judged):
            others = [one for one in honest if one is not candidate]
            yield compare([others[number % len(others)], others[(number + 1) % len(others)]], candidate)


def test_honest_servers_with_low_bit_noise_raise_no_alarm():
    """`benchmarks/load/false_alarms.py` makes 200 of them, each of a model of its own."""
    verdicts = list(verdicts_on_small_models(5, 4))
    agree = [verdict.figures["under_load_match"] for verdict in verdicts]
    assert 0.5 < sum(agree) / len(agree) < 0.9, "the noise is there"
    assert not [verdict.findings for verdict in verdicts if verdict.wrong]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(crosstalk=0.06), "a token that it holds for unlikely; of its own answers 0% do"),
        (Fault(scale=1.5), "nats from the baseline's"),
    ],
    ids=["another request's state", "other probabilities"],
)
def test_a_fault_under_load_is_found_behind_the_noise(fault, words):
    for verdict in verdicts_on_small_models(3, 2, fault):
        assert verdict.wrong
        assert any(text.startswith("under load, ") and words in text for text in verdict.findings)
        assert not any(text.startswith("idle") for text in verdict.findings)


def test_other_kernels_differ_without_being_wrong():
    model = Model(1)
    verdict = compare([model.answers(), model.answers()], model.answers(idle=0.08, loaded=0.1))
    assert not verdict.wrong
    assert any("of an answer agrees" in text for text in verdict.findings)
    assert verdict.figures["idle_match"] < verdict.figures["idle_baseline_match"]


def test_a_quarter_of_nonsense_is_caught_where_log_probabilities_are_known():
    model = Model(2)
    honest, mad = model.answers(), model.answers(nonsense_loaded=True)
    mixed = honest.model_copy(update={"loaded": mad.loaded[:8] + honest.loaded[8:]})
    assert compare([model.answers(), model.answers()], mixed).wrong


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"logprobs": (float("nan"),)}, "log-probabilities that are no numbers"),
        ({"tokens": ("a",) * TOKENS}, "one token or a short cycle repeated"),
        ({"tokens": ("a", "b", "c") * 16}, "one token or a short cycle repeated"),
        ({"tokens": ()}, "no token"),
        ({"tokens": ("a", "b")}, "fewer tokens than asked"),
        ({"tokens": (), "error": "HTTP 500"}, "the request failed"),
    ],
)
def test_defects_are_named(change, words):
    model = Model(3)
    honest = model.answers()
    broken = tuple(answer.model_copy(update=change) for answer in honest.loaded[:8])
    verdict = compare([model.answers()], honest.model_copy(update={"loaded": broken + honest.loaded[8:]}))
    assert verdict.wrong
    assert any(words in text for text in verdict.findings)


def test_a_baseline_that_repeats_itself_may_be_repeated():
    model = Model(4)
    model.right = [["a", "b"] * 24 for _ in range(PROMPTS)]
    assert not compare([model.answers(), model.answers()], model.answers()).wrong


def test_pieces():
    a, b = (Answer(tokens=tuple(text), asked=4) for text in ("abcd", "abxd"))
    assert (first_difference(a, b), matched_share(a, b)) == (2, 0.5)
    knowing = a.model_copy(update={"top": ((), (), (("c", -0.1), ("x", -0.6)), ())})
    assert not parts_far(knowing, b)
    assert parts_far(knowing, Answer(tokens=tuple("abzd"), asked=4))
    assert matched_share(a, Answer(asked=4, error="refused")) == 0.0


def test_other_prompts_are_refused():
    model = Model(5)
    with pytest.raises(ValueError, match="different numbers"):
        compare([model.answers()], model.answers().model_copy(update={"idle": ()}))


def test_answers_are_read_from_both_apis():
    sglang = {
        "text": " a b",
        "output_ids": [5, 6],
        "meta_info": {
            "finish_reason": {"type": "length", "length": 2},
            "output_token_logprobs": [[-0.1, 5, None], [None, 6, None]],
            "output_top_logprobs": [[[-0.1, 5, None], [-3.0, 9, None]], None],
        },
    }
    found = read_answer(sglang, 2)
    assert (found.tokens, found.finish_reason, found.top[0]) == (("5", "6"), "length", (("5", -0.1), ("9", -3.0)))
    assert found.logprobs[0] == -0.1
    assert found.logprobs[1] != found.logprobs[1]  # null: not a number
    told = {"tokens": [" a", " b"], "token_logprobs": [-0.1, -0.2], "top_logprobs": [{" a": -0.1}, {" b": -0.2}]}
    openai = {"choices": [{"text": " a b", "finish_reason": "length", "logprobs": told}]}
    assert read_answer(openai, 2).tokens == (" a", " b")
    assert read_answer({"choices": [{"text": "a b"}]}, 2).tokens == ("a", "b")
    assert read_answer([], 2).error


def test_a_server_that_answers_nonsense_only_under_load_is_caught():
    generator = closed_loop.create(closed_loop.Settings())
    level = Level(concurrency=32, workload=Workload(input_tokens=16, output_tokens=20), limit_s=60)

    def ask(server):
        found = generator.answers(server.url, level, WallClock(), lambda progress: True, {})
        assert found is not None
        assert not [answer.error for answer in found.idle + found.loaded if answer.error]
        return found

    with exact_rate_server("--itl-s", 0.002, "--ttft-s", 0.01) as process:
        honest = process.behaving("--itl-s", 0.002, "--ttft-s", 0.01)
        reference = [ask(honest), ask(honest)]
        assert not generator.agreement(reference, ask(honest), False).wrong
        verdict = generator.agreement(reference, ask(process.behaving("--itl-s", 0.002, "--nonsense-above", 16)), False)
    assert verdict.wrong
    assert all("under load" in text for text in verdict.findings)


@pytest.mark.parametrize("api", ["sglang", "openai"])
def test_tasks_are_asked_under_load_and_a_drop_is_wrong_output(tmp_path, api):
    path = tmp_path / "tasks.jsonl"
    rows = [{"prompt": f"question {number}", "expected": f"question {number}"[::-1]} for number in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    generator = closed_loop.create(closed_loop.Settings(tasks=str(path)))
    assert "20 tasks" in generator.remarks[0]
    assert "a drop by 45% of all tasks would be noticed with a probability of 80%" in generator.remarks[0]
    level = Level(concurrency=32, workload=Workload(input_tokens=16, output_tokens=20, api=api), limit_s=60)
    fast = ("--itl-s", 0.004, "--ttft-s", 0.01)
    with exact_rate_server(*fast) as process:
        honest, mad = (
            generator.answers(server.url, level, WallClock(), lambda progress: True, {})
            for server in (process.behaving(*fast), process.behaving(*fast, "--nonsense-above", 16))
        )
    assert honest.solved == (True,) * 20
    fine, worse = generator.agreement([honest], honest, False), generator.agreement([honest], mad, False)
    assert not fine.wrong
    assert (fine.figures["tasks"], fine.figures["tasks_solved"]) == (20, 20)
    assert any("tasks solved where the baseline solves 20" in text for text in worse.findings)


def test_asking_can_be_ended():
    generator = closed_loop.create(closed_loop.Settings())
    level = Level(concurrency=8, workload=Workload(), limit_s=60)
    with exact_rate_server("--ttft-s", 2.0) as server:
        assert generator.answers(server.url, level, WallClock(), lambda progress: False, {}) is None
