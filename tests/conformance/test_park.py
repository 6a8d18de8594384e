"""A run is given up until something happens, unless that has happened already."""

from __future__ import annotations

import pytest

from pyrula.workflows.stores.errors import JournalRolledBack, TokenRefused
from tests.conformance.stage import COMPLETE, INIT, LONG_MS, Stage, done, pending


async def test_a_parked_run_waits_without_an_owner(stage: Stage) -> None:
    lock = await stage.own("a")
    reply = await stage.store.park(lock, 2, [done("0")], due_ms=None)
    assert reply.outcome == "parked"
    info = await stage.info("a")
    assert (info.status, info.incarnation, info.due_ms) == ("waiting", None, None)
    assert await stage.journal("a") == [INIT, done("0")]
    assert await stage.claimable() == []


async def test_a_run_parked_with_a_due_time_sleeps_until_then(stage: Stage) -> None:
    lock = await stage.own("a")
    due = await stage.now_ms() + LONG_MS
    assert (await stage.store.park(lock, 2, [], due_ms=due)).outcome == "parked"
    info = await stage.info("a")
    assert (info.status, info.due_ms) == ("sleeping", due)
    assert await stage.fire() == 0


async def test_a_park_repeated_after_a_lost_reply_answers_the_same(stage: Stage) -> None:
    lock = await stage.own("a")
    for _ in range(2):
        assert (await stage.store.park(lock, 2, [done("0")], due_ms=None)).outcome == "parked"
    assert await stage.journal("a") == [INIT, done("0")]


async def test_a_park_repeated_after_its_timer_fired_leaves_the_run_alone(stage: Stage) -> None:
    lock = await stage.own("a")
    due = await stage.now_ms() + 40
    await stage.store.park(lock, 2, [], due_ms=due)
    await stage.until(stage.fire)
    new = await stage.reclaim("a", member="member-2")
    assert (await stage.store.park(lock, 2, [], due_ms=due)).outcome == "parked"
    assert (await stage.store.append(new, 2, [done("0")])).length == 2


async def test_a_latched_cancel_is_told_instead_of_parking(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.store.cancel(lock.ref)
    reply = await stage.store.park(lock, 2, [done("0")], due_ms=None)
    assert reply.outcome == "cancel"
    assert await stage.journal("a") == [INIT, done("0")]


async def test_a_time_that_has_come_is_told_instead_of_parking(stage: Stage) -> None:
    lock = await stage.own("a")
    due = await stage.now_ms()
    assert (await stage.store.park(lock, 2, [done("0")], due_ms=due)).outcome == "due"
    assert await stage.journal("a") == [INIT, done("0")]


async def test_cancel_goes_before_due(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.store.cancel(lock.ref)
    due = await stage.now_ms()
    assert (await stage.store.park(lock, 2, [], due_ms=due)).outcome == "cancel"


@pytest.mark.parametrize("reason", ["cancel", "due"])
async def test_after_a_refusal_to_park_the_caller_still_owns_the_run(
    stage: Stage, reason: str
) -> None:
    lock = await stage.own("a")
    if reason == "cancel":
        await stage.store.cancel(lock.ref)
    reply = await stage.store.park(lock, 2, [done("0")], due_ms=await stage.now_ms())
    assert reply.outcome == reason
    assert (await stage.store.append(lock, 3, [COMPLETE])).length == 3
    assert (await stage.info("a")).status == "running"


async def test_parking_with_an_old_token_changes_nothing(stage: Stage) -> None:
    old = await stage.own("a")
    await stage.settle()
    await stage.reclaim("a", member="member-2")
    before = await stage.journal("a")
    with pytest.raises(TokenRefused):
        await stage.store.park(old, len(before) + 1, [done("0")], due_ms=None)
    assert await stage.journal("a") == before
    assert (await stage.info("a")).status == "running"


async def test_parking_behind_a_gap_changes_nothing(stage: Stage) -> None:
    lock = await stage.own("a")
    with pytest.raises(JournalRolledBack):
        await stage.store.park(lock, 5, [done("0")], due_ms=None)
    assert (await stage.info("a")).status == "running"


async def test_parking_carries_events_that_a_lost_post_did_not_write(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.store.append(lock, 2, [pending("0")])
    await stage.store.park(lock, 2, [pending("0"), done("0")], due_ms=None)
    assert await stage.journal("a") == [INIT, pending("0"), done("0")]


async def test_a_park_tells_store_time(stage: Stage) -> None:
    lock = await stage.own("a")
    before = await stage.now_ms()
    reply = await stage.store.park(lock, 2, [], due_ms=None)
    assert before <= reply.now_ms <= await stage.now_ms()
