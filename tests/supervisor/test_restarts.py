"""The arithmetic of restarts: a back-off per slot, a sliding window over the pool."""

from __future__ import annotations

from pyrula.supervisor.restarts import CAP_S, Backoff, CrashWindow

ALMOST_ONE = 0.999_999


def test_the_delay_doubles_to_its_cap() -> None:
    backoff = Backoff()
    delays = [round(backoff.failed(0.0, ALMOST_ONE), 1) for _ in range(12)]
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0]


def test_the_jitter_is_full() -> None:
    assert Backoff().failed(0.0, 0.0) == 0.0


def test_a_minute_of_service_resets_it() -> None:
    backoff = Backoff()
    for _ in range(8):
        backoff.failed(0.0, ALMOST_ONE)
    assert backoff.failed(60.0, ALMOST_ONE) < 0.11


def test_less_than_a_minute_of_service_does_not() -> None:
    backoff = Backoff()
    for _ in range(8):
        backoff.failed(59.0, ALMOST_ONE)
    assert backoff.failed(59.0, ALMOST_ONE) > 20


def test_in_a_crash_loop_every_slot_waits_about_the_cap() -> None:
    assert CAP_S / 2 <= Backoff().failed(0.0, 0.0, capped=True) <= CAP_S


def test_more_than_twice_the_pool_in_a_minute_is_a_crash_loop() -> None:
    window = CrashWindow(procs=4)
    assert [window.exited(float(n)) for n in range(9)] == [False] * 8 + [True]
    assert window.looping_since == 8.0


def test_a_small_pool_has_three_for_free() -> None:
    window = CrashWindow(procs=1)
    assert [window.exited(0.0) for _ in range(4)] == [False, False, False, True]


def test_the_window_slides() -> None:
    window = CrashWindow(procs=1)
    for n in range(4):
        window.exited(float(n))
    assert window.looping(59.0)
    assert not window.looping(61.0)
    assert window.looping_since is None
