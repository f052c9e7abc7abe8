"""The correctness gate: before a configuration may win, its answers are compared with the baseline's.

The baseline's first launch answers twice, which says how much its own answers differ; every trial that measures more
than the baseline answers once, after its levels, and so does every launch of the confirmation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from servetune.core.answers import Agreement, AnswerChecker, AnswerRecord, AnswerSet
from servetune.core.benchmark import Level, LoadGenerator, Measurement
from servetune.core.failure import Evidence, Failure, Phase, Verdict
from servetune.core.space import Assignment
from servetune.core.study import StudySpec
from servetune.core.trial import RunPurpose
from servetune.storage import Store

#: The baseline is always the first trial.
BASELINE = 0
#: Sets of answers of the baseline's first launch.
CALIBRATION = 2
LEAST_LIMIT_S = 300.0
#: Node seconds from a request to the end of its answer; longer ones have mostly waited.
LONGEST_WAIT_S = 150.0
#: Share of the held requests; where more are being answered nobody waits.
MOST_OF_THEM = 0.7
EVIDENCE_CHARS = 2000


def checker_of(generator: LoadGenerator) -> AnswerChecker | None:
    """The generator as one that can ask for answers; None when it cannot, or was told not to."""
    return generator if isinstance(generator, AnswerChecker) and generator.checks_answers else None


def random_weights(assignment: Assignment) -> bool:
    """Whether the model was loaded without its weights: what is another sharding then is another model."""
    return assignment.get("load-format") == "dummy"


@dataclass(frozen=True)
class Gate:
    """The gate of one run. `store` holds the baseline's answers, so that a resumed study has them."""

    spec: StudySpec
    store: Store
    checker: AnswerChecker
    trial: int
    attempt: int
    purpose: RunPurpose
    random_weights: bool

    def rounds(self, measurements: Sequence[Measurement]) -> int:
        """How often this launch has to answer; 0: it cannot win."""
        if self.purpose is RunPurpose.CONFIRM:
            return 1
        if self.trial == BASELINE:
            return CALIBRATION
        baseline = self.store.outcome(self.spec.study, BASELINE)
        if baseline is None or baseline.value is None:
            return 1
        objective = self.spec.objective
        ahead = objective.value(objective.contributions(measurements)) > baseline.value
        return 1 if ahead or (objective.minimize is not None and self._beats_in_one(measurements)) else 0

    def _beats_in_one(self, measurements: Sequence[Measurement]) -> bool:
        """With two objectives, whether the baseline leaves it a place on the front."""
        runs = [run for run in self.store.runs(self.spec.study, BASELINE) if run.finished_at and run.failure is None]
        if not runs:
            return True
        rate, latency_s = self.spec.objective.both(measurements)
        base_rate, base_latency_s = self.spec.objective.both(runs[0].measurements)
        return rate > base_rate or latency_s < base_latency_s

    def level(self, measurements: Sequence[Measurement]) -> Level:
        """The load under which it answers: the busiest level's.

        Where that means minutes in the server's queue, only as many requests as ran at once.
        """
        busiest = max(measurements, key=lambda m: m.concurrency)
        return Level(
            concurrency=_load(busiest),
            workload=self.spec.workload,
            limit_s=max(LEAST_LIMIT_S, self.spec.timeouts.level_s),
        )

    def judge(self, sets: Sequence[AnswerSet]) -> Failure | None:
        """Store the answers with what came of them; the failure of a configuration whose answers are wrong."""
        reference = self._reference()
        own = not reference and self.trial == BASELINE
        agreement = self.checker.agreement(reference or (sets[:-1] if own else ()), sets[-1], self.random_weights)
        if self.trial == BASELINE:
            agreement = self._of_the_baseline(agreement, sets[-1])
        kept = sets if self.trial == BASELINE else [one.without_alternatives() for one in sets]
        record = AnswerRecord(trial=self.trial, attempt=self.attempt, sets=tuple(kept), agreement=agreement)
        self.store.save_answers(self.spec.study, record)
        return _failure(agreement)

    def _of_the_baseline(self, agreement: Agreement, answers: AnswerSet) -> Agreement:
        """It is wrong by itself or not at all, whatever its earlier answers were."""
        alone = self.checker.agreement((), answers, self.random_weights)
        return alone if alone.wrong else agreement.model_copy(update={"wrong": False, "undecided": False})

    def _reference(self) -> list[AnswerSet]:
        """The baseline's answers, of its earlier launches only when this is one of them."""
        records = self.store.answers(self.spec.study, BASELINE)
        return [one for record in records if record.attempt != self.attempt or self.trial for one in record.sets]


def _load(measurement: Measurement) -> int:
    held = max(1, round(measurement.details.get("concurrency_found", measurement.concurrency)))
    if measurement.itl_s is None or measurement.e2e_s is None or measurement.e2e_s.mean <= LONGEST_WAIT_S:
        return held
    # Little's law: tokens per second times seconds per token
    answered = round(measurement.output_tokens_per_s * measurement.itl_s.mean)
    return held if answered >= MOST_OF_THEM * held else max(1, answered)


def _failure(agreement: Agreement) -> Failure | None:
    if agreement.undecided:
        return _made("invalid_measurement", Verdict.RETRY, ("too few of its answers came in time to judge them",))
    if not agreement.wrong:
        return None
    return _made("wrong_output", Verdict.INFEASIBLE, (*agreement.findings, *agreement.examples))


def _made(slug: str, verdict: Verdict, sentences: Sequence[str]) -> Failure:
    return Failure(
        slug=slug,
        phase=Phase.SERVING,
        verdict=verdict,
        message=sentences[0],
        deterministic=verdict is Verdict.INFEASIBLE,
        evidence=tuple(Evidence(line=0, text=text[:EVIDENCE_CHARS]) for text in sentences),
        confidence=0.9,
    )
