"""The search for the highest load under a limit, on latencies with noise, outliers, dips and gaps."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servetune.benchmarks._bisection import Bisection, Verdict

MOST, TOLERANCE, LIMIT = 1024, 0.1, 1.0


def search(look, most=MOST, tolerance=TOLERANCE):
    """`look`: load → (verdict, clear). The finished search, and how many looks it took."""
    found, looks = Bisection(most, tolerance), 0
    while load := found.next():
        assert 1 <= load <= most
        assert looks <= 60
        looks += 1
        found.tell(load, *look(load))
    return found, looks


def exact(holds):
    return lambda load: (Verdict.KEPT if holds(load) else Verdict.BROKEN, True)


@given(st.integers(0, 2000), st.integers(1, 2000), st.sampled_from([0.02, 0.1, 0.5]))
def test_without_noise_the_place_is_found_within_the_tolerance(place, most, tolerance):
    found, looks = search(exact(lambda load: load <= place), most, tolerance)
    best = min(place, most)
    assert found.kept <= best
    assert best <= max(found.kept * (1 + tolerance), found.kept)
    assert looks <= 4 + math.ceil(math.log2(max(2, math.log(most + 1) / math.log1p(tolerance))))


def test_limits_that_always_hold_cost_one_look_and_those_that_never_do_cost_three():
    always, looks = search(exact(lambda load: True))
    assert (always.kept, always.bound, looks) == (MOST, None, 1)
    never, looks = search(exact(lambda load: False))
    assert (never.kept, never.tried, looks) == (0, (1, 32, MOST), 3)


def noisy(chance, place, sd, outliers, factor=4.0):
    """p99 rises with the load and is `LIMIT` at `place`; in some looks it is several times as high."""

    def look(load):
        true = LIMIT * (0.2 + 0.8 * load / place)
        slow = factor if chance.random() < outliers else 1.0
        value = true * slow * math.exp(chance.gauss(0, sd))
        half = 2 * sd * value if slow == 1.0 else value  # a slow moment stretches its interval
        return Verdict.KEPT if value <= LIMIT else Verdict.BROKEN, abs(value - LIMIT) > half

    return look


@pytest.mark.parametrize(("sd", "outliers"), [(0.02, 0.0), (0.05, 0.05), (0.10, 0.05)])
def test_noise_and_outliers_hardly_move_the_place(sd, outliers):
    chance, off, looks = random.Random(1), [], 0
    for _ in range(1000):
        place = math.exp(chance.uniform(math.log(4), math.log(900)))
        found, count = search(noisy(chance, place, sd, outliers))
        off.append(math.log(max(found.kept, 0.5) / place))
        looks += count
    allowed = math.log1p(TOLERANCE) + 3 * sd
    assert sum(abs(one) > allowed + math.log(4 / 3) for one in off) <= 20, "far off in more than 2 %"
    assert sum(abs(one) <= allowed + 0.05 for one in off) >= 900
    assert looks / 1000 < 14  # 11 without noise


def test_one_slow_moment_at_a_low_load_does_not_hide_all_above_it():
    seen = []

    def look(load):
        seen.append(load)
        outlier = seen.count(32) == 1 and load == 32
        return (Verdict.KEPT if load <= 300 and not outlier else Verdict.BROKEN), not outlier

    found, _ = search(look)
    assert 300 / 1.1 <= found.kept <= 300


def test_a_lucky_moment_does_not_win():
    def look(load, seen=[]):  # noqa: B006 (remembers between calls on purpose)
        seen.append(load)
        lucky = 100 < load <= 140 and seen.count(load) == 1
        return (Verdict.KEPT if load <= 100 or lucky else Verdict.BROKEN), not lucky

    found, _ = search(look)
    assert 100 / 1.1 <= found.kept <= 100


def test_latencies_that_fall_at_first_are_found():
    found, _ = search(exact(lambda load: 8 <= load <= 200))
    assert 200 / 1.1 <= found.kept <= 200


@given(st.lists(st.booleans(), min_size=64, max_size=64), st.integers(1, 64))
def test_any_curve_ends_with_a_load_that_was_kept(holds, most):
    found, _ = search(exact(lambda load: holds[load - 1]), most)
    assert found.kept == 0 or holds[found.kept - 1]


def test_loads_that_cannot_be_measured_bound_the_search_and_are_told():
    def look(load):
        return (Verdict.UNMEASURED, False) if load > 100 else (Verdict.KEPT, True)

    found, _ = search(look)
    assert 100 / 1.1 <= found.kept <= 100
    assert found.bound_unmeasured
    inside, _ = search(lambda load: (Verdict.UNMEASURED, False) if load > 500 else exact(lambda one: one <= 80)(load))
    assert 80 / 1.1 <= inside.kept <= 80
    assert not inside.bound_unmeasured, "the limit lies below what cannot be measured"
    nothing, looks = search(lambda load: (Verdict.UNMEASURED, False))
    assert (nothing.kept, nothing.bound_unmeasured, looks) == (0, True, 6)


def test_a_measurement_that_fails_once_is_made_again():
    seen = []

    def look(load):
        seen.append(load)
        return (Verdict.UNMEASURED, False) if seen.count(load) == 1 else exact(lambda one: one <= 50)(load)

    found, _ = search(look)
    assert 50 / 1.1 <= found.kept <= 50
    assert not found.bound_unmeasured
