"""`--config FILE`: the same reading as the launcher of 0.5.9 and 0.5.23, case by case."""

import pytest

from servetune.engines.sglang._config_file import with_config
from servetune.engines.sglang.capabilities import capabilities_of
from servetune.engines.sglang.flags import parse_argv

MERGED = [
    ("tp-size: 8\nenable-mixed-chunk: true\n", [], ["--tp-size", "8", "--enable-mixed-chunk"]),
    ("tp-size: 8\nenable-mixed-chunk: false\n", [], ["--tp-size", "8"]),
    ("cuda-graph-bs: [1, 2]\n", [], ["--cuda-graph-bs", "1", "2"]),
    ("mem-fraction-static: true\n", [], ["--mem-fraction-static", "true"]),
    ("tp_size: 8\n", [], ["--tp_size", "8"]),
    ("", ["--tp-size", "4"], ["--tp-size", "4"]),
    ("tp-size: 8\n", ["--tp-size", "4"], ["--tp-size", "8", "--tp-size", "4"]),
]


@pytest.mark.parametrize(("text", "own", "merged"), MERGED)
def test_the_file_comes_first(tmp_path, text, own, merged):
    (tmp_path / "f.yaml").write_text(text)
    for words in ([*own, "--config", str(tmp_path / "f.yaml")], ["--config", str(tmp_path / "f.yaml"), *own]):
        assert with_config(words, capabilities_of("0.5.9")) == (merged, [], "")


def test_what_the_command_says_wins(tmp_path):
    (tmp_path / "f.yaml").write_text("tp-size: 8\nkv-cache-dtype: fp8_e4m3\n")
    known = capabilities_of("0.5.23")
    begin = ["NAME=1", "python3", "-m", "sglang.launch_server"]
    words, _, _ = with_config([*begin, "--tp-size", "4", "--config", str(tmp_path / "f.yaml")], known)
    assert words[:4] == begin
    found, problems = parse_argv(words, known)
    assert not problems
    assert found == {"env.NAME": "1", "tp-size": 4, "kv-cache-dtype": "fp8_e4m3"}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("f.yaml", "- 1\n", "it holds a list"),
        ("f.yaml", "tp-size: [8\n", "it is no YAML"),
        ("f.txt", "tp-size: 8\n", "ends in .yaml or .yml"),
        ("f.yaml", "enable-tf32-matmul: true\n", "enable-tf32-matmul cannot stand in a file"),
    ],
)
def test_what_is_wrong_about_the_file(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    words, (problem,), _ = with_config(["--tp-size", "8", "--config", str(tmp_path / name)], capabilities_of("0.5.23"))
    assert said in problem.message
    assert words == ["--tp-size", "8"]


@pytest.mark.parametrize("words", [["--config"], ["--config", "a.yaml", "--config", "b.yaml"]])
def test_one_file_is_given_once(words):
    _, (problem,), _ = with_config(words, capabilities_of("0.5.9"))
    assert "it takes one file, and is given once" in problem.message


def test_a_file_elsewhere_is_not_read_and_refuses_nothing(tmp_path):
    _, problems, note = with_config(["--config", str(tmp_path / "none.yaml")], capabilities_of("0.5.9"))
    assert not problems
    assert "it is not on this machine" in note
    _, problems, note = with_config([f"--config={tmp_path}/none.yaml"], capabilities_of("0.5.9"))
    assert not problems
    assert "as a word of its own" in note
