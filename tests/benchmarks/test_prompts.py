"""Prompts: exact lengths, the same in every process, unlike one another, with the statistics of text."""

import itertools
import json
import subprocess
import sys
from collections import Counter

import pytest

from servetune.benchmarks._prompts import PromptSource, Vocabulary, vocabulary_below, vocabulary_size


def source(seed=0, level=10):
    return PromptSource(Vocabulary(), seed, level)


@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 512, 5000])
def test_exact_length_within_the_vocabulary(tokens):
    ids = json.loads(source().ids_json(7, tokens))
    assert len(ids) == tokens
    assert all(100 <= i < 30_000 for i in ids)
    assert ids == source().ids(7, tokens)


def test_same_prompts_in_another_process():
    program = (
        "from servetune.benchmarks._prompts import *; "
        "print(PromptSource(Vocabulary(), 5, 1024).ids_json(999, 64).decode())"
    )
    # hash randomisation must not reach them
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert other.strip() == source(5, 1024).ids_json(999, 64).decode()


def test_seed_level_and_number_each_change_the_prompt():
    prompts = {
        source(seed, level).ids_json(number, 32) for seed in (0, 1) for level in (1, 1024) for number in range(50)
    }
    assert len(prompts) == 200


def test_prompts_share_hardly_any_prefix():
    prompts = [tuple(source().ids(number, 16)) for number in range(3000)]
    assert max(Counter(prompt[:2] for prompt in prompts).values()) <= 2
    assert max(Counter(prompt[:4] for prompt in prompts).values()) == 1


def test_statistics_of_text_and_not_of_counting():
    ids = [i for number in range(20) for i in source().ids(number, 512)]
    counts = Counter(ids).most_common()
    assert counts[0][1] > 0.03 * len(ids)  # a most frequent word, as in English
    assert sum(count for _, count in counts[:100]) > 0.4 * len(ids)
    assert len(counts) > 500
    following = sum(b - a == 1 for a, b in itertools.pairwise(ids))
    assert following < 0.01 * len(ids)


def test_small_vocabularies_are_respected():
    vocabulary = vocabulary_below(256)
    assert all(i < 256 for i in PromptSource(vocabulary, 0, 1).ids(0, 2000))
    assert vocabulary_below(None) == Vocabulary()
    assert vocabulary_below(150_000) == Vocabulary()


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ('{"vocab_size": 4096}', 4096),
        ('{"text_config": {"vocab_size": 163840}}', 163_840),
        ('{"hidden_size": 64}', None),
        ("[]", None),
        ("{", None),
    ],
)
def test_vocabulary_size_out_of_a_model_folder(tmp_path, config, size):
    (tmp_path / "config.json").write_text(config)
    assert vocabulary_size(str(tmp_path)) == size


def test_vocabulary_size_of_a_model_elsewhere():
    assert vocabulary_size("moonshotai/Kimi-K2.5") is None
