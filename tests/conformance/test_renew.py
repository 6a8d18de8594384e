"""A renewal keeps a lock alive for its owner and for nobody else."""

from __future__ import annotations

from pyrula.workflows.stores.base import Flag
from tests.conformance.stage import COMPLETE, LONG_MS, Stage


async def test_a_renewed_lock_lives_on(stage: Stage) -> None:
    lock = await stage.own("a", lock_ttl_ms=100)
    (reply,) = await stage.renew(lock)
    assert (reply.held, reply.flags) == (True, Flag.NONE)
    await stage.elapse(150)
    assert await stage.scan(120) == (0, 0)
    assert (await stage.info("a")).incarnation == lock.incarnation


async def test_a_renewal_repeated_is_held_again(stage: Stage) -> None:
    lock = await stage.own("a")
    first = await stage.renew(lock)
    assert await stage.renew(lock) == first


async def test_a_renewal_with_an_old_token_is_not_held(stage: Stage) -> None:
    old = await stage.own("a", lock_ttl_ms=30)
    await stage.store.requeue(old, 2, [], backoff=False)
    await stage.reclaim("a", member="member-2", lock_ttl_ms=30)
    (reply,) = await stage.renew(old)
    assert reply.held is False
    await stage.elapse(60)
    assert await stage.scan(90) == (1, 0)


async def test_a_renewal_of_a_parked_or_finished_run_is_not_held(stage: Stage) -> None:
    parked = await stage.own("parked")
    await stage.store.park(parked, 2, [], due_ms=None)
    finished = await stage.own("finished")
    await stage.store.finish(finished, 2, [COMPLETE], status="completed")
    replies = await stage.renew(parked, finished)
    assert [reply.held for reply in replies] == [False, False]
    assert (await stage.info("parked")).status == "waiting"
    assert await stage.scan(LONG_MS) == (0, 0)


async def test_one_reply_comes_for_each_lock_in_their_order(stage: Stage) -> None:
    locks = [await stage.own(run_id) for run_id in ("a", "b", "c")]
    await stage.store.requeue(locks[1], 2, [], backoff=False)
    await stage.store.cancel(locks[2].ref)
    replies = await stage.renew(*locks)
    assert [reply.held for reply in replies] == [True, False, True]
    assert [bool(reply.flags & Flag.CANCEL) for reply in replies] == [False, False, True]


async def test_a_renewal_of_no_locks_is_empty(stage: Stage) -> None:
    assert await stage.renew() == []


async def test_locks_of_several_members_are_renewed_together(stage: Stage) -> None:
    first = await stage.own("a", member="member-1")
    second = await stage.own("b", member="member-2")
    assert [reply.held for reply in await stage.renew(second, first)] == [True, True]


async def test_a_buried_member_renews_nothing(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.settle()
    (reply,) = await stage.renew(lock)
    assert reply.held is False
    assert (await stage.info("a")).status == "queued"
