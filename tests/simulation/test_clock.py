"""Virtual time."""

from servetune.simulation.clock import VirtualClock


def test_a_sleep_ends_at_the_next_event():
    clock = VirtualClock()
    for at_s in (3.0, 7.0, 7.0):
        clock.schedule(at_s)
    clock.sleep(5)
    assert clock.now_s() == 3.0
    clock.sleep(1)
    assert clock.now_s() == 4.0
    clock.sleep(100)
    assert clock.now_s() == 7.0
    clock.sleep(100)
    assert clock.now_s() == 107.0


def test_advancing_passes_events_and_the_past_is_not_scheduled():
    clock = VirtualClock()
    clock.schedule(3.0)
    clock.advance(10.0)
    clock.schedule(4.0)
    clock.sleep(1.0)
    assert clock.now_s() == 11.0


def test_time_never_goes_back():
    clock = VirtualClock()
    clock.advance(5.0)
    clock.sleep(-3.0)
    clock.advance(-3.0)
    assert clock.now_s() == 5.0
