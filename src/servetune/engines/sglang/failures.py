"""Triage: from what a log holds to one Failure. Evidence with precedence, never a bag of words.

1. The earliest root cause in time decides: of the first failing rank, the inner exception before its wrapper.
2. A failure that no signature explains comes next, then a warning that foretold the end, then mere consequences.
3. What the server survived (a later ready line, a later step of the start) is no cause.
4. With nothing in the log: what the tuner saw (`hint`), then how the process ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from servetune.core.failure import Failure, Phase, Repair, Verdict
from servetune.core.node import Exit
from servetune.core.space import Assignment
from servetune.core.wording import shortened
from servetune.engines.sglang._failure_advice import UNKNOWN, advice_for
from servetune.engines.sglang._failure_causes import Cause, causes_of, choose
from servetune.engines.sglang._failure_ends import cut_off, interrupted, is_foreign, unlike
from servetune.engines.sglang._failure_signs import stuck_phase
from servetune.engines.sglang._failure_suspects import SUSPICION, blamed_of, named_of
from servetune.engines.sglang._failure_table import entry
from servetune.engines.sglang._failure_text import as_evidence, evidence_of, explanation, masked, sentence
from servetune.engines.sglang._log_flags import (
    LaunchFlags,
    accused,
    kept,
)
from servetune.engines.sglang._log_fragment import is_worker
from servetune.engines.sglang._log_notices import Notice
from servetune.engines.sglang._log_run import Run
from servetune.engines.sglang._repair_numbers import Draft, numbers_of
from servetune.engines.sglang._replaced_options import replaced, resolved
from servetune.engines.sglang._unused_graphs import unused_graphs
from servetune.engines.sglang.repair import repairs_for

_SIGNALS = {137: -9, 139: -11, 134: -6, 143: -15, 130: -2}
#: Retractions that are further apart than this, on average, are not held against a configuration.
RARE_S = 300.0
#: What the tuner saw itself (`hint`) when nothing moves.
_SEEN = {
    "stall": "no new log line",
    "deadline": "not ready before the deadline",
    "hang": "requests get no answer",
}


def diagnose(run: Run, assignment: Assignment, exit: Exit | None, hint: str | None) -> Failure:
    """One failure for one log; see `SglangLogReader.diagnose`."""
    run = telling(run)
    flags = LaunchFlags.of(run, assignment)
    causes = list(causes_of(run, flags))
    chosen = choose(causes, run)
    if chosen is not None and not (hint in ("wrong_output", "overload") and chosen.strength == "secondary"):
        return _failure(chosen, causes, run, flags)
    seen = _hinted(hint, run, flags) or _alive(causes, run, flags) or _by_end(run, flags, exit)
    return seen if seen is not None else _none(run)


def telling(run: Run) -> Run:
    """The last server of the log; the one before when that died and the last one had only begun the same start."""
    begun = run.progress.ready or run.deaths or run.traces or run.events
    loops = run.previous is not None and run.previous.decided and run.repeats(run.previous)
    return run.previous if run.previous is not None and loops and not begun else run


def _failure(cause: Cause, causes: Sequence[Cause], run: Run, flags: LaunchFlags) -> Failure:
    if cause.entry is None:
        return _unknown(cause, run, flags)
    signature = cause.entry.signature
    lead = explanation(cause, run)
    text = lead[1] + "\n" + cause.text if lead else cause.text
    numbers = numbers_of(run, flags, text, cause.groups)
    accusation, pointed_at = blamed_of(cause, text, run, flags)
    blamed = tuple(accusation)
    draft = Draft(run, flags, numbers, text + "\n" + cause.stack, cause.groups, blamed, cause.phase)
    verdict = _verdict(cause, blamed, flags)
    repairs = repairs_for(signature.repair, draft)
    if not repairs and verdict is Verdict.INFEASIBLE and cause.trace is not None:
        repairs = repairs_for(("advised",), draft)
    evidence = tuple(evidence_of(cause, lead, causes, run))
    return Failure(
        slug=cause.entry.owner.slug,
        phase=cause.phase,
        verdict=verdict,
        message=sentence(signature.cause, cause, lead, numbers, run),
        deterministic=cause.entry.deterministic,
        evidence=evidence,
        blamed=blamed,
        named=named_of(cause, text, blamed, flags) if pointed_at else (),
        repairs=repairs,
        advice=advice_for(cause.entry, verdict, repairs, evidence),
        confidence=_confidence(cause, causes)
        if pointed_at or not blamed
        else min(SUSPICION, _confidence(cause, causes)),
    )


#: What decides how large a batch may be, and so which kernel an engine that already served takes for it.
SHAPES_BATCHES = ("chunked-prefill-size", "max-prefill-tokens", "max-running-requests", "context-length")


def _verdict(cause: Cause, blamed: Sequence[str], flags: LaunchFlags) -> Verdict:
    """Of the signature. With nothing that was asked for to blame, what fails is the node, or the model on it."""
    assert cause.entry is not None
    signature = cause.entry.signature
    known = bool(flags.asked) if signature.blame == "auto" else flags.known
    asked = any(flags.on(flag) or flag in flags.asked for flag in blamed)
    if cause.entry.owner.slug == "arch_unsupported" and cause.phase is Phase.SERVING:
        asked = asked or any(flag in flags.asked for flag in SHAPES_BATCHES)
    if signature.unasked is not None and not asked and (known or (not blamed and cause.entry.owner.slug == "host_env")):
        return signature.unasked
    return cause.entry.verdict


def _confidence(cause: Cause, causes: Sequence[Cause]) -> float:
    """Of the signature; less when another rank failed for another understood reason at the same time."""
    assert cause.entry is not None
    value = cause.entry.signature.confidence
    if cause.strength == "secondary":
        value = min(value, 0.6)
    others = {one.entry.owner.slug for one in causes if one.entry and one.strength == "root"}
    return round(value - (0.1 if len(others - {cause.entry.owner.slug}) else 0.0), 2)


def _unknown(cause: Cause, run: Run, flags: LaunchFlags) -> Failure:
    blamed = tuple(accused(cause.text, cause.stack, flags))
    lines = [(cause.line, cause.line_text), *([cause.wrapper] if cause.wrapper else [])]
    draft = Draft(run, flags, numbers_of(run, flags, "", {}), cause.text, {}, blamed, cause.phase)
    return Failure(
        slug="unknown",
        phase=cause.phase,
        verdict=Verdict.INFEASIBLE,
        message=f"no known class; the first failure says: {shortened(masked(cause.line_text.strip()), 200)}",
        evidence=tuple(as_evidence(lines)),
        blamed=blamed,
        repairs=repairs_for(("advised",), draft),
        advice=UNKNOWN,
        confidence=0.3,
    )


def _table_failure(
    name: str, run: Run, flags: LaunchFlags, lines: Sequence[tuple[int, str]], phase: Phase, **values: Any
) -> Failure:
    """A failure of a signature that was found otherwise than by its text."""
    found = entry(name)
    signature = found.signature
    text = "\n".join(text for _, text in lines)
    blamed = tuple(accused(text, "", flags) if signature.blame == "auto" else kept(signature.blame, flags)[:3])
    numbers = numbers_of(run, flags, "", {})
    draft = Draft(run, flags, numbers, text, {}, blamed, phase)
    evidence = tuple(as_evidence(lines))
    repairs = repairs_for(signature.repair, draft)
    values = {"at_frame": "", "first_line": shortened(lines[0][1].strip(), 200) if lines else "", **values}
    return Failure(
        slug=found.owner.slug,
        phase=phase,
        verdict=found.verdict,
        message=masked(signature.cause.format(**values)),
        deterministic=found.deterministic,
        evidence=evidence,
        blamed=blamed,
        repairs=repairs,
        advice=advice_for(found, found.verdict, repairs, evidence),
        confidence=signature.confidence,
    )


def _hinted(hint: str | None, run: Run, flags: LaunchFlags) -> Failure | None:
    """What the tuner saw itself, where the log has no cause."""
    last = [run.last_line] if run.last_line[0] else []
    phase = stuck_phase(run.progress.phase, run)
    if hint == "wrong_output":
        found = _table_failure("failed_probe", run, flags, last, Phase.SERVING, wanted_text="the expected text")
        return found.model_copy(update={"message": "the correctness probe got a wrong answer"})
    if hint == "overload":
        return _table_failure("queue_full", run, flags, last, Phase.SERVING)
    if hint in ("stall", "deadline", "hang"):
        lead = [run.progress.jit_line] if run.progress.jit_line else []
        found = _table_failure("request_timeout", run, flags, [*lead, *last], phase)
        words = _SEEN[hint]
        doing = " while kernels were compiled" if lead or run.progress.autotuning else ""
        return found.model_copy(update={"message": f"{words} in phase {phase.value}{doing}", "confidence": 0.7})
    return None


def _alive(causes: Sequence[Cause], run: Run, flags: LaunchFlags) -> Failure | None:
    """Trouble of a server that is alive: refused load, options without effect, retractions, useless drafts."""
    if not run.progress.ready and (run.deaths or not is_worker(run)):
        return None
    alive = sorted((cause for cause in causes if cause.strength == "alive"), key=lambda cause: cause.when)
    slow = [cause for cause in alive if cause.entry and cause.entry.signature.name == "slower_than_baseline"]
    if alive and len(slow) < len(alive):
        telling = [cause for cause in alive if cause not in slow]
        return _failure(min(telling, key=_says_more), [], run, flags)
    explained = _slowed(run, flags)
    if explained is not None:
        return explained
    return _failure(slow[0], [], run, flags) if slow else _without_effect(run, flags)


#: Lines that say that requests are refused, not why.
_COUNTED = {"queue_full": 1, "no_worker_takes_it": 1, "circuit_opens": 2}


def _says_more(cause: Cause) -> tuple[int, tuple[float, int]]:
    """What says why comes before a line that only counts it (a refused request); else the earliest."""
    assert cause.entry is not None
    return _COUNTED.get(cause.entry.signature.name, 0), cause.when


def _slowed(run: Run, flags: LaunchFlags) -> Failure | None:
    """What the engine's own lines say of why it is slow: useless drafts, retractions."""
    throughput = run.throughput
    if throughput.stands:
        text = throughput.last_decode.decode("utf-8", "replace").strip()
        return _table_failure("same_batch_for_ever", run, flags, [(run.last_decode_line, text)], Phase.SERVING)
    graphs = unused_graphs(run, flags)
    if graphs is not None:
        values = {"running": graphs.running, "captured": graphs.captured}
        return _table_failure("graphs_unused", run, flags, [graphs.line], Phase.SERVING, **values)
    accept = throughput.accept_length
    if accept is not None and accept <= 1.05 and len(throughput.sample) >= 2 and throughput.first_decode:
        number, raw = throughput.first_decode
        lines = [(number, raw.decode("utf-8", "replace"))]
        return _table_failure("draft_never_accepted", run, flags, lines, Phase.SERVING, accept_length=accept)
    if throughput.retractions and not _rare(throughput.retractions, run):
        lines = [(number, text) for number, text, _ in run.explaining.get("retraction", ())][:2]
        return _table_failure("retractions", run, flags, lines, Phase.SERVING, retractions=throughput.retractions)
    return None


def _rare(retractions: int, run: Run) -> bool:
    """Whether the pool was full so seldom that it costs nothing to speak of."""
    serving = [step.stamp_s for step in run.progress.steps if step.phase is Phase.SERVING and step.stamp_s is not None]
    return bool(serving) and run.end_s is not None and run.end_s - serving[0] >= RARE_S * retractions


def _without_effect(run: Run, flags: LaunchFlags) -> Failure | None:
    for number, text, said, phase in run.notices:
        notice = resolved(said, flags)
        if _should_work(notice, flags) or _asked_in_vain(notice, flags):
            failure = _table_failure(
                "option_without_effect", run, flags, [(number, text)], phase, notice=shortened(text.strip(), 200)
            )
            on = [flag for flag in notice.flags if flags.on(flag)]
            blamed = [*(flag for flag, _ in notice.repair), *(on or ([] if notice.repair else notice.flags[:1]))]
            steps = [
                Repair(flag=flag, value=value, reason="the engine then takes another path")
                for flag, value in notice.repair
            ]
            drop = [
                Repair(flag=flag, value=None, reason="it does nothing here")
                for flag in notice.flags
                if flags.on(flag) and (notice.why != "override" or notice.subject)
            ]
            return failure.model_copy(update={"blamed": tuple(blamed), "repairs": tuple([*steps, *drop])})
    return None


def _should_work(notice: Notice, flags: LaunchFlags) -> bool:
    """Whether a check of the engine's own failed and something helps, or what it switched off was switched on.

    A default that the engine could not use, and said so, leaves a server that works as this node lets it.
    """
    return notice.why == "internal" and (bool(notice.repair) or any(flags.on(flag) for flag in notice.flags))


def _asked_in_vain(notice: Notice, flags: LaunchFlags) -> bool:
    """Whether somebody asked for what a notice says is not there: a switch, a choice, custom all-reduce kept on."""
    for flag in notice.flags:
        if flag == "disable-custom-all-reduce":
            if flags.asked.get(flag) is False:
                return True
        elif not flag.startswith("enable-"):
            if _is_replaced(flag, notice, flags):
                return True
        elif flags.on(flag):
            known = flag in flags.asked or (notice.subject and not flags.asked)
            if notice.why != "override" or known:
                return True
    return False


def _is_replaced(flag: str, notice: Notice, flags: LaunchFlags) -> bool:
    """Whether a notice says that the engine does otherwise than a choice or a number that was asked for."""
    if notice.changes:
        return any(flag in replaced(change, flags) for change in notice.changes)
    return notice.why == "override" and flag in flags.asked and flags.on(flag) and not flag.startswith("disable-")


def _by_end(run: Run, flags: LaunchFlags, exit: Exit | None) -> Failure | None:
    """From how the process ended, or from an end in the log that nothing explains."""
    code = _SIGNALS.get(exit.code, exit.code) if exit is not None and exit.code is not None else None
    last = [run.last_line] if run.last_line[0] else []
    if run.stop_line or code in (-15, -2) or interrupted(run):
        return None
    if not run.deaths and not code and (cut := cut_off(run)) is not None:
        return cut
    lines = [*run.deaths[:2], *last]
    phase = run.progress.phase
    shot = run.deaths and all(text.strip() == "Killed" for _, text in run.deaths)
    if shot or (code == -9 and not run.deaths):
        return _table_failure("killed", run, flags, lines, phase)
    if code is not None and code in (-6, -7, -8, -11, -4):
        return _table_failure("signal_exit", run, flags, lines, phase)
    if not run.deaths and not (code or 0) and run.progress.ready:
        return None
    if not run.deaths and not code and not run.progress.steps and not run.last_line[0]:
        message = "the log is empty"
    elif run.deaths:
        message = "the server died and its log does not say why"
    elif code:
        message = f"the process ended with status {code} and its log does not say why"
    else:
        message = (
            f"{unlike(run)}the log ends in phase {phase.value} without an error: still starting, or ended from outside"
        )
    return Failure(
        slug="unknown",
        phase=phase,
        verdict=Verdict.RETRY,
        message=message,
        evidence=tuple(as_evidence(lines)),
        advice=None if is_foreign(run) else UNKNOWN,
        confidence=0.2,
    )


def _none(run: Run) -> Failure:
    """A healthy log. When it has alarming words, their phase and line are named: they mean nothing."""
    worry = run.worry if run.worry and run.worry[2] is not Phase.SERVING else None
    words = f"; line {worry[0]} looks alarming and was survived" if worry else ""
    return Failure(
        slug="none",
        phase=worry[2] if worry else run.progress.phase,
        verdict=Verdict.NONE,
        message=f"healthy: the server became ready on line {run.progress.ready_line}{words}"
        if run.progress.ready
        else "no failure: the server was asked to stop",
        deterministic=None,
        confidence=0.9 if run.progress.ready else 0.5,
    )
