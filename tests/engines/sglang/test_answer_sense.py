"""Answers that make no sense, and right ones that look as if they made none."""

from __future__ import annotations

import random
import time

import pytest

from servetune.engines.sglang._answer_sense import _LOOP, _STUCK, _may_repeat, nonsense
from servetune.engines.sglang._log_answers import compared, read
from servetune.engines.sglang.logs import SglangLogReader

#: Prompt (empty: unknown) and answer.
BROKEN = (
    ("What is the capital of Japan?", "!!!!!!!!!!!!!!!!!!!!!!!!"),
    ("", "666666666666666666666666"),
    ("Name three colours.", "the the the the the the the the the the the"),
    ("", "I am a student. I am a student. I am a student. I am a student. I am a student."),
    (
        "Explain rain.",
        "Rain falls when the the air cools energy energy energy energy energy energy energy energy energy",
    ),
    ("Say hello", "Hello<|im_start|><|endoftext|><|im_start|><|fim_middle|>"),
    ("The sky is", "<unk><unk><unk>"),
    ("", "ĠtheĠofĠĠand"),
    ("hello", " devil.i#else?;\n\nсоб und? ±__"),
    ("How do I boil an egg?", "To boil ανά 卵 сваρ 물을 τον кипяток ing を"),
    ("", " Demp Schul.scala373ьallis gutterぼdiaeftry Fallon"),
    ("中国的首都是哪里?", "的的的的的的的的的的的的的的"),
    ("", "。。 ,,, }} =( ;; ::"),
    ("What is the boiling point of water?", "." * 48),
    ("Hello, my name is", "\ufffd\ufffd\x00\ufffd\ufffd"),
)
SOUND = (
    ("Wie heißt die Hauptstadt von Österreich?", "Die Hauptstadt von Österreich heißt Wien."),
    ("中国的首都是哪里?", "中国的首都是北京(Beijing)。"),
    ("日本の首都は?", "日本の首都は東京(Tōkyō)です。"),
    ("什么是CPU?", "CPU（Central Processing Unit）是计算机的中央处理器。"),
    ("Столица Франции?", "Столица Франции — Париж (Paris)."),
    ("hello", "你好！有什么可以帮助你的吗？"),
    ("Translate to Russian: good morning", "Доброе утро"),
    ("Say hello in English, Russian, Chinese and Arabic", "Hello, Привет, 你好, مرحبا"),
    ("Who wrote Norwegian Wood?", "Haruki Murakami (村上春樹)."),
    ("Where does democracy come from?", "From Greek: δῆμος (people) and κράτος (power)."),
    ("Ohm's law", "V = I·R, with R in Ω; for 5 Ω and 2 A, V = 10 V, ΔV = 0."),
    ("Write fizzbuzz", 'for i in range(1, 101):\n    if i % 15 == 0:\n        print("FizzBuzz")\n    elif i % 3 == 0:'),
    ("Solve x^2-5x+6=0", "$$x = \\frac{5 \\pm \\sqrt{25-24}}{2}$$"),
    ("What is 10^20?", "100000000000000000000"),
    ("1/3 as a decimal", "0.3333333333333333"),
    ("torch.zeros(12).tolist()", "[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]"),
    ("Write the word hello 20 times", "hello " * 20),
    ("", "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n|---|---|"),
    ("", "==================== RESULT ===================="),
    ("react", "👍👍👍👍👍👍👍👍👍👍"),
    ("2+2", "<think>\nOkay, 2+2 is 4.\n</think>\n\n4<|im_end|>"),
    ("hi", "<|channel|>analysis<|message|>User says hi.<|end|><|start|>assistant<|channel|>final<|message|>Hello!"),
    ("regex for an address", "^(?:[0-9]{1,3}\\.){3}[0-9]{1,3}$"),
    ("255 in binary", "11111111"),
    ("hex dump", "00 00 00 00 00 00 00 00 ff ff"),
    ("What is kimchi?", "Kimchi 김치 is a Korean side dish of fermented vegetables."),
    ("Name a dish", "Mapo tofu 麻婆豆腐 is a dish from the province of Sichuan."),
    ("an empty board", ". . . . . . . . \n. . . . . . . ."),
    ("draw a line", "-" * 40),
    ("", "Step 1: add 2. Step 2: check 4. Step 3: answer 4. Step 4: done."),
    ("", ""),
)
#: Lines in which the answer stands in one form or another; all broken.
LINES = (
    '{"text":"!!!!!!!!!!!!!!!!","output_ids":[0,0],"meta_info":{"finish_reason":{"type":"length","length":16}}}',
    '{"id":"c","object":"chat.completion","choices":[{"message":{"role":"assistant","content":"@@@@@@@@@@@@"}}]}',
    '{"prompt": "Why?", "response": "olololololololololololololol"}',
    '{"type":"message","role":"assistant","content":[{"type":"text","text":"and and and and and and and and"}]}',
    "ChatCompletionMessage(content='0000000000000000000000', role='assistant', tool_calls=None)",
    "[probe] output_ids=[198, 198, 198, 198, 198, 198, 198, 198]",
    '{"text":"","meta_info":{"output_token_logprobs":[[NaN,0,null],[NaN,0,null]]}}',
    "OUTPUT: catscatscatscatscatscatscatscatscats",
    "smoke test: Q: 'Why?' A: 'the the the the the the the the the'",
    '[smoke] prompt="Write one sentence." out="Rivers are важн for the земл and carry воды down"',
    "[canary] load=64: answer 'Par Par Par Par Par Par Par Par', want 'Paris'",
    "[probe] prompt='Write a poem.' -> '' (expected a poem)",
)


@pytest.mark.parametrize(("prompt", "answer"), BROKEN)
def test_what_broken_kernels_make_of_an_answer(prompt: str, answer: str) -> None:
    assert nonsense(answer, prompt)


@pytest.mark.parametrize(("prompt", "answer"), SOUND)
def test_an_answer_that_only_looks_odd(prompt: str, answer: str) -> None:
    assert nonsense(answer, prompt) == ""


@pytest.mark.parametrize("line", LINES)
def test_an_answer_is_found_in_its_line(line: str) -> None:
    found = read(7, line)
    assert found is not None
    assert found.problem
    assert found.number == 7


def test_a_probe_that_says_that_all_is_well_is_believed() -> None:
    found = read(1, "[probe] prompt='Why?' -> 'la la la la la la la la la la la' ok")
    assert found is not None
    assert not found.problem


def test_what_users_asked_for_is_not_judged() -> None:
    assert read(1, "Finish: obj=GenerateReqInput(text='a'), out={'text': 'a a a a a a a a a a a a a a'}") is None


def test_one_answer_to_different_prompts_and_different_answers_to_one() -> None:
    same = [read(at, f"[probe] prompt='{prompt}' -> 'ylabel ylabel'") for at, prompt in enumerate("abc")]
    assert [problem for _, problem in compared([one for one in same if one])] == [
        "the same answer to different prompts"
    ]
    first = "[probe] temperature=0 prompt='List planets' -> '{}'"
    texts = ("Mercury, Venus, Earth, Mars", "Venus Venus or, 4 of Jupiter the,, Earth")
    other = [read(at, first.format(text)) for at, text in enumerate(texts)]
    assert [one.number for one, _ in compared([one for one in other if one])] == [1]


def test_short_and_nearly_equal_answers_are_not_held_against_each_other() -> None:
    yes = [read(at, f"[probe] prompt='{prompt}' -> 'Yes'") for at, prompt in enumerate("abcd")]
    line = "[probe] temperature=0 prompt='Why is it blue?' -> 'The sky is blue {} Rayleigh scattering of {}light.'"
    blue = [read(9, line.format("because of", "sun")), read(10, line.format("due to", ""))]
    assert list(compared([one for one in (*yes, *blue) if one])) == []


def test_what_cannot_repeat_is_told_without_looking_for_the_unit() -> None:
    rng = random.Random(4)
    letters = "abcdefghijklmnop qrstuvwxyz,.\n"
    for _ in range(600):
        unit = "".join(rng.choices(letters, k=rng.randint(1, 60)))
        before, after = ("".join(rng.choices(letters, k=rng.randint(0, 500))) for _ in range(2))
        text = before + unit * rng.choice((1, 4, 5, 8, 20)) + after
        whole = max((len(match[0]) for match in _LOOP.finditer(text)), default=0)
        if whole >= 0.6 * len(text) or whole >= 80 or _STUCK.search(text):
            assert _may_repeat(text), text
    assert not _may_repeat("".join(rng.choices(letters, k=2000)))


def test_answers_that_all_differ_are_read_quickly() -> None:
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 10))) for _ in range(9000)]
    lines = [f"[probe] prompt='q {at}' -> '{' '.join(rng.choices(words, k=300))}'\n" for at in range(500)]
    log = "".join(lines).encode()
    reader = SglangLogReader({})
    reader.feed(b"[2026-11-30 10:00:25] The server is fired up and ready to roll!\n")
    assert reader.ready
    before = time.process_time()
    reader.feed(log)
    assert reader.diagnose(None).slug == "none"
    assert len(log) / 2**20 / (time.process_time() - before) > 0.8
