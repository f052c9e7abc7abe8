"""Continuous batching: exact counts, the stated rate, first come first served, and few enough events."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.simulation.batching import Answer, Batch

MANY = 1e9  # events per second: one token each


def flat(rate):
    return lambda present, peak: rate


def run_until_idle(batch, step_s=0.5, most=100_000):
    emissions = []
    for _ in range(most):
        emissions += batch.advance(batch.now_s + step_s)
        if not batch.present:
            return emissions
    raise AssertionError("still busy")


@settings(deadline=None)
@given(
    wanted=st.lists(st.integers(1, 300), min_size=1, max_size=20),
    capacity=st.integers(1, 25),
    events_per_s=st.sampled_from([1.0, 20.0, 300.0, MANY]),
    step_s=st.floats(0.001, 5.0),
)
def test_every_answer_gets_exactly_its_tokens_and_the_total_takes_the_rate(wanted, capacity, events_per_s, step_s):
    batch = Batch(flat(50.0), capacity, events_per_s)
    answers = [Answer(10, count) for count in wanted]
    for answer in answers:
        batch.arrive(answer)
    got = dict.fromkeys(answers, 0)
    last_s = 0.0
    for emission in run_until_idle(batch, step_s):
        got[emission.answer] += emission.tokens
        assert emission.tokens >= 1
        assert emission.at_s >= last_s - 1e-9
        last_s = emission.at_s
        assert emission.last == (got[emission.answer] == emission.answer.wanted)
    assert [got[answer] for answer in answers] == wanted
    assert batch.tokens == sum(wanted)
    # never idle until the last one ends, so the total takes exactly tokens / rate
    assert last_s == pytest.approx(sum(wanted) / 50.0, abs=1e-6)


def test_running_requests_share_the_rate_equally():
    batch = Batch(lambda present, peak: 10.0 * present, 100, MANY)
    short, long = Answer(1, 20), Answer(1, 40)
    batch.arrive(short)
    batch.arrive(long)
    ends = {emission.answer: emission.at_s for emission in run_until_idle(batch) if emission.last}
    assert ends[short] == pytest.approx(2.0)  # 20 tokens/s for two: 10 each
    assert ends[long] == pytest.approx(4.0)  # alone it still gets 10


def test_waiting_requests_come_in_turn_and_count_as_present():
    seen = []

    def rate(present, peak):
        seen.append(present)
        return 10.0

    batch = Batch(rate, 1, MANY)
    answers = [Answer(1, 10) for _ in range(3)]
    for answer in answers:
        batch.arrive(answer)
    assert (batch.running, batch.waiting, batch.present) == (1, 2, 3)
    ends = [emission.answer for emission in run_until_idle(batch) if emission.last]
    assert ends == answers
    assert set(seen) == {1, 2, 3}


def test_a_dropped_request_leaves_its_share_to_the_others():
    batch = Batch(flat(10.0), 2, MANY)
    answers = [Answer(1, 10) for _ in range(4)]
    for answer in answers:
        batch.arrive(answer)
    batch.drop(answers[3])  # waits
    batch.drop(answers[0])  # runs: the third one takes its place
    batch.drop(answers[0])
    assert (batch.running, batch.waiting) == (2, 0)
    run_until_idle(batch)
    assert [answer.sent for answer in answers] == [0, 10, 10, 0]
    assert batch.now_s >= 2.0


def test_dropping_a_request_that_never_arrived_changes_nothing():
    batch = Batch(flat(10.0), 2, MANY)
    batch.drop(Answer(1, 10))
    assert (batch.running, batch.waiting, batch.present) == (0, 0, 0)


def test_the_first_token_goes_alone_and_the_events_stay_below_the_limit():
    batch = Batch(flat(1000.0), 8, 50.0)
    for _ in range(40):
        batch.arrive(Answer(1, 256))
    emissions = run_until_idle(batch, step_s=0.001)
    firsts = {}
    for emission in emissions:
        firsts.setdefault(emission.answer, emission)
    assert {emission.tokens for emission in firsts.values()} == {1}
    seconds = 40 * 256 / 1000.0
    assert len(emissions) <= 50.0 * seconds * 1.01


def test_nothing_is_due_while_nothing_is_present():
    batch = Batch(flat(10.0), 2, MANY)
    assert batch.next_s() is None
    assert list(batch.advance(5.0)) == []
    assert batch.now_s == 5.0
    assert batch.tokens_per_s == 0.0


@pytest.mark.parametrize("lag_s", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("concurrency", [1, 10, 40])
def test_a_closed_loop_measures_the_rate_whatever_its_client_costs(lag_s, concurrency):
    """At 100 node seconds in one, a client that needs a few milliseconds between requests does not halve the rate."""
    batch = Batch(lambda present, peak: 100.0 * math.sqrt(present), 24, 50.0, time_scale=100.0, patience_s=10.0)
    coming = [(0.0, Answer(1, max(1, 256 * (number + 1) // concurrency))) for number in range(concurrency)]
    until_s, now_s, tokens_at = 200.0, 0.0, []
    while now_s < until_s:
        now_s += 0.2  # one tick
        batch.told_s = now_s
        for at_s, answer in [entry for entry in coming if entry[0] <= now_s]:
            coming.remove((at_s, answer))
            for emission in batch.advance(at_s):
                if emission.last:
                    coming.append((now_s + lag_s, Answer(1, 256)))
            batch.arrive(answer)
        for emission in batch.advance(now_s):
            if emission.last:
                coming.append((now_s + lag_s, Answer(1, 256)))
        tokens_at.append((now_s, batch.tokens))
    half_s, half = next(entry for entry in tokens_at if entry[0] >= until_s / 2)
    measured = (batch.tokens - half) / (now_s - half_s)
    assert measured == pytest.approx(100.0 * math.sqrt(concurrency), rel=0.02)


def test_a_place_is_only_kept_for_a_moment():
    batch = Batch(lambda present, peak: 10.0 * present, 8, MANY, time_scale=100.0, patience_s=10.0)
    for _ in range(2):
        batch.arrive(Answer(1, 10))
    assert sum(emission.tokens for emission in batch.advance(1.0)) == 20
    list(batch.advance(50.0))
    late = Answer(1, 10)
    batch.arrive(late)
    assert late.arrived_s == pytest.approx(50.0)
    ends = [emission.at_s for emission in run_until_idle(batch) if emission.last]
    assert ends == [pytest.approx(51.0)]


def test_kept_places_count_as_load_until_another_load_begins():
    batch = Batch(lambda present, peak: 10.0 * present, 8, MANY, time_scale=100.0, patience_s=10.0)
    for _ in range(3):
        batch.arrive(Answer(1, 10))
    assert sum(emission.tokens for emission in batch.advance(2.0)) == 30
    assert (batch.present, batch.places) == (0, 3)
    batch.arrive(Answer(1, 10))
    assert (batch.present, batch.places) == (1, 3)
    batch.forget_places()
    assert (batch.present, batch.places) == (1, 1)
