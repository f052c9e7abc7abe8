"""Triage of logs: handed cases, recordings of real servers, and composed adversaries in every dress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engines.sglang.adversarial import CASES, Case
from engines.sglang.composing import DRESSES, LOADING, OOM, Log, plain
from engines.sglang.messages import MESSAGES, log_of

from servetune.core.failure import Failure, Verdict
from servetune.core.node import Exit
from servetune.engines.sglang import _failure_table
from servetune.engines.sglang.logs import SglangLogReader

RECORDINGS = Path(__file__).parents[2] / "recordings"


#: Nothing in these logs says that the server is lost: what is missing does.
SILENT = ("cut_while_starting", "health_without_answer", "silent_start", "stuck_without_a_word")
#: Healthy, and asked to stop at last.
STOPPED = ("healthy_and_stopped", "somebody_pressed_control_c")


def recordings() -> list[tuple[str, str, dict[str, Any]]]:
    found = []
    for folder in ("cases", "cpu", "h200"):
        expected = json.loads((RECORDINGS / folder / "expected.json").read_text())
        found += [(folder, name, answer) for name, answer in expected.items()]
    return found


def read(raw: bytes, assignment: dict[str, Any] | None = None) -> SglangLogReader:
    reader = SglangLogReader(assignment or {})
    reader.feed(raw)
    return reader


def becomes(reader: SglangLogReader, repairs: list[dict[str, Any]], flag: str, wanted: Any) -> bool:
    """Whether one of the first three repairs turns the flag in the wanted direction."""
    values = [repair["value"] for repair in repairs[:3] if repair["flag"] == flag]
    if not values:
        return False
    value, now = values[0], reader.flags().value(flag.removeprefix("--"))
    if wanted == "drop":
        return value is None
    if wanted == "any":
        return value is not None
    if wanted in ("raise", "lower"):
        above = now is None or value > now
        return above if wanted == "raise" else now is None or value < now
    return bool(value == wanted)


@pytest.mark.parametrize(
    ("folder", "name", "wanted"), recordings(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_recording(folder: str, name: str, wanted: dict[str, Any]) -> None:
    reader = read((RECORDINGS / folder / f"{name}.log").read_bytes())
    failure = reader.diagnose(None)
    assert (failure.slug, failure.phase.value) == (wanted["class"], wanted["phase"])
    assert failure.verdict.value == wanted["verdict"]
    if wanted["line"] is not None:
        assert wanted["line"] in [evidence.line for evidence in failure.evidence]
    if wanted["repair"] is not None:
        repairs = reader.report(failure)["repair"]
        assert becomes(reader, repairs, wanted["repair"]["flag"], wanted["repair"]["becomes"]), repairs


def test_every_recording_has_an_answer() -> None:
    for folder in ("cases", "cpu", "h200"):
        logs = {path.stem for path in (RECORDINGS / folder).glob("*.log")}
        assert logs == set(json.loads((RECORDINGS / folder / "expected.json").read_text()))


def check(case: Case, dress: Any) -> None:
    log = case.build(Log())
    reader = read(dress(log.text()))
    failure = reader.diagnose(None)
    report = reader.report(failure)
    assert (failure.slug, failure.phase.value) == (case.slug, case.phase)
    if log.decisive:
        assert failure.evidence[0].line == log.decisive
    assert failure.verdict.value in case.verdicts.split()
    if case.blamed:
        assert case.blamed in report["blamed"]
    if case.repair:
        assert becomes(reader, report["repair"], *case.repair), report["repair"]


@pytest.mark.parametrize(("number", "case"), list(enumerate(CASES)), ids=lambda value: getattr(value, "name", ""))
def test_adversary(number: int, case: Case) -> None:
    """Plain and in three other dresses, so that each dress is worn by many."""
    check(case, plain)
    for turn in range(3):
        check(case, DRESSES[(3 * number + turn) % len(DRESSES)])


@pytest.mark.slow
@pytest.mark.parametrize("dress", DRESSES, ids=lambda dress: dress.__name__)
def test_every_adversary_in_every_dress(dress: Any) -> None:
    for case in CASES:
        check(case, dress)


@pytest.mark.parametrize(("place", "frames", "text", "classes"), MESSAGES, ids=[row[2][:60] for row in MESSAGES])
def test_message(place: str, frames: tuple[str, ...], text: str, classes: str) -> None:
    log = log_of(place, frames, text)
    failure = read(log.text().encode()).diagnose(None)
    assert failure.slug in classes.split("|")
    assert log.decisive <= failure.evidence[0].line <= log.decisive + text.count("\n")


def test_the_seeds_fraction_is_computed_and_not_bisected() -> None:
    log = next(case for case in CASES if case.name == "not_enough_memory_059").build(Log())
    failure = read(log.text().encode()).diagnose(None)
    assert failure.repairs[0].flag == "mem-fraction-static"
    assert failure.repairs[0].value == pytest.approx(0.837)
    assert "0.827" in failure.repairs[0].reason
    assert "16.3 of 94.0 GB" in failure.repairs[0].reason


def test_an_empty_window_turns_another_knob() -> None:
    log = Log().arguments(tp_size=8, mem_fraction_static=0.9, moe_a2a_backend="deepep", cuda_graph_max_bs=256)
    log.start("weights", ("TP0",), begin=78.0, after=1.1)
    log.raises("TP0", (), "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.").dies()
    failure = read(log.text().encode()).diagnose(None)
    assert "mem-fraction-static" not in [repair.flag for repair in failure.repairs]
    assert {"cuda-graph-max-bs", "moe-a2a-backend"} <= {repair.flag for repair in failure.repairs}


def test_the_assignment_is_blamed_before_the_log_shows_arguments() -> None:
    log = Log().add("something", "")
    log.raises(
        None,
        ("/x/launch_server.py:<module>> prepare_server_args(", "server_args.py:f> assert x"),
        "AssertionError: moe_dense_tp_size only support 1 and None currently",
        header="",
    )
    failure = read(log.text().encode(), {"moe-dense-tp-size": 8, "tp-size": 8}).diagnose(Exit(code=1))
    assert failure.blamed == ("moe-dense-tp-size",)


@pytest.mark.parametrize(
    ("hint", "slug", "verdict"),
    [
        ("wrong_output", "wrong_output", Verdict.INFEASIBLE),
        ("overload", "overload", Verdict.NONE),
        ("hang", "hang", Verdict.RETRY),
    ],
)
def test_a_hint_decides_where_the_log_is_healthy(hint: str, slug: str, verdict: Verdict) -> None:
    reader = read(Log().arguments(tp_size=1).start("ready").text().encode())
    failure = reader.diagnose(None, hint)
    assert (failure.slug, failure.verdict) == (slug, verdict)


def test_a_stall_names_the_phase_and_what_was_done() -> None:
    log = Log().arguments(tp_size=1).start("capture")
    log.add("Entering DeepGEMM JIT Pre-Compile session. It may take a long time (typically 10-20 mins)", "", 1)
    failure = read(log.text().encode()).diagnose(None, "stall")
    assert (failure.slug, failure.phase.value, failure.verdict) == ("hang", "graph_capture", Verdict.RETRY)
    assert "compiled" in failure.message


def test_an_exception_further_up_beats_a_stall() -> None:
    log = next(case for case in CASES if case.name == "host_memory_while_loading").build(Log())
    assert read(log.text().encode()).diagnose(None, "stall").slug == "host_env"


@pytest.mark.parametrize(
    ("code", "slug", "verdict"),
    [
        (-9, "host_env", Verdict.RETRY),
        (137, "host_env", Verdict.RETRY),
        (-11, "device_fault", Verdict.RETRY),
        (1, "unknown", Verdict.RETRY),
        (0, "none", Verdict.NONE),
        (-15, "none", Verdict.NONE),
    ],
)
def test_the_exit_code_decides_last(code: int, slug: str, verdict: Verdict) -> None:
    failure = read(Log().arguments(tp_size=1).start("ready").text().encode()).diagnose(Exit(code=code))
    assert (failure.slug, failure.verdict) == (slug, verdict)


def test_an_empty_log_is_unknown() -> None:
    failure = read(b"").diagnose(None)
    assert failure.slug == "unknown"
    assert failure.evidence == ()


def case_named(name: str) -> SglangLogReader:
    return read(next(case for case in CASES if case.name == name).build(Log()).text().encode())


@pytest.mark.parametrize(
    "name", ["worked_and_was_started_again", "vanished_while_loading_and_was_started_again", "restarting_container"]
)
def test_the_last_launch_is_judged_alone(name: str) -> None:
    """The second start of the weights is that of another server, not of a draft model."""
    reader = case_named(name)
    failure = reader.diagnose(None)
    assert "draft" not in failure.message
    assert not [one for one in failure.repairs if one.flag == "tp-size" and one.value == 16]
    assert reader.report(failure)["timeline"][0]["line"] > 4


def test_a_launch_is_not_blamed_for_flags_of_the_one_before() -> None:
    log = Log().add("$ python3 -m sglang.launch_server --model-path /m --tp 2 --moe-runner-backend triton")
    log.arguments(tp_size=2, moe_runner_backend="triton").start("ready")
    log.add("$ python3 -m sglang.launch_server --model-path /m --tp 4")
    log.arguments(tp_size=4).start("load")
    assert dict(read(log.text().encode()).facts()["command"]) == {"model-path": "/m", "tp-size": 4}


def test_nodes_that_start_together_are_one_server() -> None:
    log = Log().arguments(tp_size=16, node_rank=0).start("dist", ("TP0", "TP1"))
    log.arguments(tp_size=16, node_rank=1).start("ready", ("TP8", "TP9"))
    reader = read(log.text().encode())
    assert reader.facts()["timeline"][0]["line"] == 1


def test_a_cut_launch_with_other_arguments_is_not_judged_by_a_dead_one() -> None:
    log = next(case for case in CASES if case.name == "worked_and_was_started_again").build(Log())
    log.arguments(tp_size=8, mem_fraction_static=0.79).start("load", ("TP0", "TP1"))
    assert read(log.text().encode()).diagnose(None).slug == "unknown"


def test_more_gpus_than_a_host_has_are_no_repair() -> None:
    for tp, wanted in ((4, [8]), (8, [])):
        log = Log().arguments(tp_size=tp, mem_fraction_static=0.9).start("load", ("TP0",))
        log.raises("TP0", LOADING, OOM.format(mib="448.00", gpu=0)).dies()
        repairs = read(log.text().encode()).diagnose(None).repairs
        assert [one.value for one in repairs if one.flag == "tp-size"] == wanted


def test_the_parent_says_whose_process_crashed() -> None:
    reader = case_named("crash_in_native_code")
    report = reader.report(reader.diagnose(None))
    assert report["first_rank"] == "TP5"
    assert "deepep.py" in report["evidence"][1]["text"]


def test_retractions_that_are_frequent_are_told_from_rare_ones() -> None:
    log = Log().arguments(tp_size=1, mem_fraction_static=0.8).start("ready").serve(2)
    for _ in range(30):
        log.add("KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_token_ratio: 0.4 -> 0.6", "", 50)
    failure = read(log.serve(2).text().encode()).diagnose(None)
    assert (failure.slug, failure.blamed) == ("perf_regression", ("mem-fraction-static",))


@pytest.mark.parametrize(
    "end",
    [
        "[Mon Mar  2 10:01:01 2026] Memory cgroup out of memory: Killed process 4211 (sglang::schedul)",
        "Mar  2 10:01:01 node7 kernel: [91231.300] Memory cgroup out of memory: Killed process 4211 (sglang::schedul)",
        "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=-997",
        "command terminated with exit code 137",
        "sglang-1 exited with code 137",
        "      Reason:       OOMKilled",
    ],
)
def test_the_kernel_kills_in_many_words(end: str) -> None:
    log = Log().arguments(tp_size=8).start("load", ("TP0", "TP1"))
    log.raises(None, ("/x/sglang/launch_server.py:<module>> run_server(server_args)",), "EOFError", header="")
    log.lines[-1] = end  # no blank line after the traceback
    failure = read(log.text().encode()).diagnose(None)
    assert (failure.slug, failure.verdict) == ("host_env", Verdict.RETRY)
    assert failure.evidence[0].text == end.strip()[-len(failure.evidence[0].text) :]


@pytest.mark.parametrize("text", ["bash: line 1: python3: command not found", "/bin/sh: 1: sglang: not found"])
def test_a_command_that_does_not_exist_stops(text: str) -> None:
    failure = read(text.encode()).diagnose(None)
    assert (failure.slug, failure.verdict, failure.deterministic) == ("host_env", Verdict.STOP, True)


def test_an_installation_teaches_nothing_about_flags() -> None:
    reader = case_named("kernels_of_another_torch")
    assert reader.diagnose(None).blamed == ()


def test_secrets_are_not_evidence() -> None:
    log = Log().arguments(tp_size=1)
    log.raises("", ("server_args.py:f",), "ValueError: bad value api_key='sk-very-secret' given").dies()
    text = str(read(log.text().encode()).diagnose(None))
    assert "sk-very-secret" not in text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_decided_on_every_death_and_on_no_healthy_log(case: Case) -> None:
    log = case.build(Log())
    decided = read(plain(log.text())).decided
    alive = {"none", "perf_regression", "overload", "wrong_output"}
    if case.slug not in alive and case.name not in SILENT:
        assert decided
    if case.slug in alive and "nan_assertion" not in case.name and case.name not in STOPPED:
        assert not decided


def test_the_table_is_sound() -> None:
    names = [signature.name for owner in _failure_table.classes() for signature in owner.signatures]
    assert len(names) == len(set(names))
    for kind in ("exception", "line"):
        for entry in _failure_table.entries(kind):
            signature = entry.signature
            for pattern in (signature.text, signature.not_text, signature.frame, signature.not_frame):
                _failure_table.compiled(pattern)


def test_every_class_of_the_table_is_tried_by_a_test() -> None:
    tried = {answer["class"] for _, _, answer in recordings()} | {case.slug for case in CASES}
    assert {owner.slug for owner in _failure_table.classes()} <= tried


def test_a_failure_is_data() -> None:
    failure = read((RECORDINGS / "cases" / "oomg_deepep_ll_h20.log").read_bytes()).diagnose(None)
    assert Failure.model_validate_json(failure.model_dump_json()) == failure


CPU_CASES = json.loads((RECORDINGS / "sglang-cpu" / "cases.json").read_text())


@pytest.mark.parametrize("name", CPU_CASES)
def test_recording_of_the_cpu_study(name: str) -> None:
    """Logs of a real server on a CPU, with what was changed on its command line."""
    flags, wanted = CPU_CASES[name]["flags"], CPU_CASES[name]["expected"]
    assignment = {flag.removeprefix("--"): True if value in (None, "") else value for flag, value in flags.items()}
    failure = read((RECORDINGS / "sglang-cpu" / f"{name}.log").read_bytes(), assignment).diagnose(None)
    assert (failure.slug, failure.verdict.value) == (wanted["class"], wanted["verdict"])
    assert wanted["phase"] in (None, failure.phase.value)
    assert {flag.removeprefix("--") for flag in wanted["blamed"]} <= set(failure.blamed)
