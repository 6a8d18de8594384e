"""Cancel is latched: whoever owns the run sees it, and without an owner somebody soon does."""

from __future__ import annotations

import pytest

from pyrula.workflows.stores.base import Flag
from pyrula.workflows.stores.errors import RunFinishedError, RunNotFoundError
from tests.conformance.stage import COMPLETE, LONG_MS, MEMBER, Stage, done


async def test_the_owner_sees_a_cancel_in_its_next_reply(stage: Stage) -> None:
    lock = await stage.own("a")
    assert await stage.store.cancel(lock.ref) == "running"
    reply = await stage.store.append(lock, 2, [done("0")])
    assert reply.flags == Flag.CANCEL
    assert (await stage.renew(lock))[0].flags == Flag.CANCEL


async def test_the_owner_is_told_to_look(stage: Stage) -> None:
    hearing = await stage.hear(MEMBER)
    lock = await stage.own("a")
    await stage.store.cancel(lock.ref)
    hint = await hearing.next()
    assert (hint.kind, hint.run_id) == ("cancel", "a")


async def test_a_queued_run_is_claimed_with_its_cancel(stage: Stage) -> None:
    ref = await stage.submit("a")
    assert await stage.store.cancel(ref) == "queued"
    (claimed,) = await stage.claim(limit=5)
    assert claimed.flags == Flag.CANCEL


async def test_a_waiting_run_becomes_claimable(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.store.park(lock, 2, [], due_ms=None)
    assert await stage.store.cancel(lock.ref) == "waiting"
    (claimed,) = await stage.claim()
    assert claimed.flags == Flag.CANCEL


async def test_a_sleeping_run_becomes_claimable_and_its_timer_is_gone(stage: Stage) -> None:
    lock = await stage.own("a")
    due = await stage.now_ms() + 40
    await stage.store.park(lock, 2, [], due_ms=due)
    assert await stage.store.cancel(lock.ref) == "sleeping"
    assert (await stage.info("a")).due_ms is None
    (claimed,) = await stage.claim()
    await stage.elapse(60)
    assert await stage.fire() == 0
    assert (await stage.store.append(claimed.lock, 2, [])).flags == Flag.CANCEL


async def test_a_delayed_run_becomes_claimable_at_once(stage: Stage) -> None:
    ref = await stage.submit("a", delay_ms=LONG_MS)
    await stage.store.cancel(ref)
    assert await stage.claimable() == ["a"]
    assert (await stage.info("a")).due_ms is None


async def test_a_cancelled_run_goes_back_to_its_old_place(stage: Stage) -> None:
    lock = await stage.own("first")
    await stage.store.park(lock, 2, [], due_ms=None)
    await stage.submit("second")
    await stage.store.cancel(lock.ref)
    assert await stage.claimable() == ["first", "second"]


async def test_cancelling_an_unowned_run_wakes_a_hungry_member(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.store.park(lock, 2, [], due_ms=None)
    hearing = await stage.hear("member-2")
    await stage.claim(member="member-2", hungry_ms=LONG_MS)
    await stage.store.cancel(lock.ref)
    assert (await hearing.next()).kind == "work"


async def test_cancelling_twice_is_as_cancelling_once(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.store.park(lock, 2, [], due_ms=None)
    await stage.store.cancel(lock.ref)
    assert await stage.store.cancel(lock.ref) == "queued"
    assert await stage.claimable() == ["a"]


async def test_a_cancel_survives_the_loss_of_the_owner(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.store.cancel(lock.ref)
    await stage.settle()
    (claimed,) = await stage.claim(member="member-2")
    assert claimed.flags == Flag.CANCEL


async def test_a_finished_run_can_not_be_cancelled(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.store.finish(lock, 2, [COMPLETE], status="completed")
    with pytest.raises(RunFinishedError):
        await stage.store.cancel(lock.ref)
    assert (await stage.info("a")).status == "completed"


async def test_a_run_that_is_not_there_can_not_be_cancelled(stage: Stage) -> None:
    with pytest.raises(RunNotFoundError):
        await stage.store.cancel(stage.ref("nowhere"))
