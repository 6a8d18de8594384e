"""A timer makes its run claimable once, when it is due and not before."""

from __future__ import annotations

from tests.conformance.stage import LONG_MS, WORKFLOW, Stage


async def _sleep(stage: Stage, run_id: str, due_ms: int) -> None:
    lock = await stage.own(run_id)
    assert (await stage.store.park(lock, 2, [], due_ms=due_ms)).outcome == "parked"


async def test_a_sleeper_is_claimable_once_due(stage: Stage) -> None:
    due = await stage.now_ms() + 40
    await _sleep(stage, "a", due)
    await stage.until(stage.fire)
    assert await stage.now_ms() >= due
    info = await stage.info("a")
    assert (info.status, info.due_ms) == ("queued", None)
    assert await stage.claimable() == ["a"]


async def test_a_timer_fires_once(stage: Stage) -> None:
    await _sleep(stage, "a", await stage.now_ms() + 20)
    await stage.until(stage.fire)
    assert await stage.fire() == 0
    assert await stage.claimable() == ["a"]
    assert await stage.fire() == 0


async def test_a_woken_run_goes_back_to_its_old_place(stage: Stage) -> None:
    await _sleep(stage, "first", await stage.now_ms() + 20)
    await stage.submit("second")
    await stage.until(stage.fire)
    assert await stage.claimable() == ["first", "second"]


async def test_no_more_than_the_limit_fire_and_the_earliest_go_first(stage: Stage) -> None:
    base = await stage.now_ms() + 150
    for place, run_id in enumerate(("c", "a", "b")):
        await _sleep(stage, run_id, base - 10 * place)
    await stage.elapse(400)
    assert await stage.fire(limit=2) == 2
    assert sorted(await stage.claimable()) == ["a", "b"]
    assert await stage.fire(limit=2) == 1


async def test_the_next_due_time_is_told(stage: Stage) -> None:
    none = await stage.store.fire_timers(WORKFLOW, 0, limit=10)
    assert (none.count, none.next_due_ms) == (0, None)
    due = none.now_ms + LONG_MS
    await _sleep(stage, "a", due + 5)
    await _sleep(stage, "b", due)
    fired = await stage.store.fire_timers(WORKFLOW, 0, limit=10)
    assert (fired.count, fired.next_due_ms) == (0, due)


async def test_a_fired_timer_wakes_a_hungry_member(stage: Stage) -> None:
    await _sleep(stage, "a", await stage.now_ms() + 20)
    hearing = await stage.hear("member-2")
    await stage.claim(member="member-2", hungry_ms=LONG_MS)
    await stage.until(stage.fire)
    assert (await hearing.next()).kind == "work"


async def test_timers_that_fire_together_wake_a_member_each(stage: Stage) -> None:
    due = await stage.now_ms() + 60
    await _sleep(stage, "a", due)
    await _sleep(stage, "b", due)
    hearings = [await stage.hear(member) for member in ("member-2", "member-3")]
    for member in ("member-2", "member-3"):
        await stage.claim(member=member, hungry_ms=LONG_MS)
    await stage.elapse(100)
    assert await stage.fire() == 2
    for hearing in hearings:
        assert (await hearing.next()).kind == "work"
