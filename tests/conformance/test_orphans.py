"""Two looks: a lock that missed a renewal is suspect, one that missed the second is taken."""

from __future__ import annotations

import asyncio

from pyrula.workflows.stores.base import Lock
from pyrula.workflows.stores.events import RunRequeued, unpack
from tests.conformance.stage import INIT, LONG_MS, WORKFLOW, Stage, done, pending
from tests.support.clock import FixedRng

TTL_MS = 90


async def _lapsed(stage: Stage, run_id: str = "a") -> Lock:
    lock = await stage.own(run_id, lock_ttl_ms=1)
    await stage.elapse(20)
    return lock


async def _taken(stage: Stage) -> bool:
    return (await stage.scan(TTL_MS))[1] > 0


async def test_a_live_lock_is_not_suspected(stage: Stage) -> None:
    await stage.own("a", lock_ttl_ms=LONG_MS)
    scanned = await stage.store.scan_orphans(WORKFLOW, 0, lock_ttl_ms=LONG_MS)
    assert (scanned.suspected, scanned.requeued, scanned.look_again_ms) == (0, 0, None)


async def test_a_lock_with_a_third_left_is_suspected_once(stage: Stage) -> None:
    await stage.own("a", lock_ttl_ms=20_000)
    assert await stage.scan(LONG_MS) == (1, 0)
    assert await stage.scan(LONG_MS) == (0, 0)


async def test_a_lapsed_lock_is_not_requeued_at_the_first_look(stage: Stage) -> None:
    await _lapsed(stage)
    assert await stage.scan(LONG_MS) == (1, 0)
    assert (await stage.info("a")).status == "running"


async def test_the_second_look_is_due_a_third_of_the_ttl_later(stage: Stage) -> None:
    await _lapsed(stage)
    scanned = await stage.store.scan_orphans(WORKFLOW, 0, lock_ttl_ms=LONG_MS)
    assert scanned.look_again_ms is not None
    assert LONG_MS / 3 - 1_000 < scanned.look_again_ms <= LONG_MS / 3


async def test_the_second_look_waits_until_the_lock_has_lapsed(stage: Stage) -> None:
    await stage.own("a", lock_ttl_ms=10_000)
    scanned = await stage.store.scan_orphans(WORKFLOW, 0, lock_ttl_ms=LONG_MS)
    assert scanned.look_again_ms is not None
    assert scanned.look_again_ms > 10_000
    await stage.elapse(20)
    assert await stage.scan(LONG_MS) == (0, 0)
    assert await stage.scan(30) == (0, 0)
    assert (await stage.info("a")).status == "running"


async def test_a_suspect_that_lapsed_is_requeued_at_the_second_look(stage: Stage) -> None:
    lock = await _lapsed(stage)
    assert await stage.scan(TTL_MS) == (1, 0)
    await stage.until(lambda: _taken(stage))
    info = await stage.info("a")
    assert (info.status, info.incarnation, info.lost) == ("queued", None, 1)
    init, event = await stage.journal("a")
    assert init == INIT
    assert unpack(event) == RunRequeued(t=info.updated_ms, reason="worker_lost", lost=1)
    new = await stage.reclaim("a", member="member-2")
    assert new.epoch == lock.epoch + 1


async def test_a_renewal_between_the_looks_clears_the_suspicion(stage: Stage) -> None:
    lock = await _lapsed(stage)
    assert await stage.scan(TTL_MS) == (1, 0)
    assert (await stage.renew(lock, ttl_ms=LONG_MS))[0].held
    await stage.elapse(TTL_MS)
    assert await stage.scan(TTL_MS) == (0, 0)
    assert (await stage.info("a")).status == "running"


async def test_a_lock_that_lapses_again_after_a_renewal_gets_two_looks_again(
    stage: Stage,
) -> None:
    lock = await _lapsed(stage)
    await stage.scan(TTL_MS)
    await stage.renew(lock, ttl_ms=1)
    await stage.elapse(TTL_MS)
    assert await stage.scan(TTL_MS) == (1, 0)
    assert (await stage.info("a")).status == "running"


async def test_a_run_given_up_between_the_looks_is_left_alone(stage: Stage) -> None:
    lock = await _lapsed(stage)
    await stage.scan(TTL_MS)
    await stage.store.park(lock, 2, [], due_ms=None)
    await stage.elapse(TTL_MS)
    assert await stage.scan(TTL_MS) == (0, 0)
    assert (await stage.info("a")).status == "waiting"


async def test_an_orphan_keeps_its_place_in_the_queue(stage: Stage) -> None:
    await _lapsed(stage, "first")
    await stage.submit("second")
    await stage.scan(TTL_MS)
    await stage.until(lambda: _taken(stage))
    assert await stage.claimable() == ["first", "second"]


async def test_an_orphan_wakes_a_hungry_member(stage: Stage) -> None:
    await _lapsed(stage)
    hearing = await stage.hear("member-2")
    await stage.claim(member="member-2", hungry_ms=LONG_MS)
    await stage.scan(TTL_MS)
    await stage.until(lambda: _taken(stage))
    assert (await hearing.next()).kind == "work"


async def test_losses_without_progress_add_up_and_wait(stage: Stage) -> None:
    store = await stage.another(rng=FixedRng(0.0))
    await stage.submit("a")
    for lost in (1, 2):
        await stage.until(stage.claimable_now("a"))
        await stage.reclaim("a", lock_ttl_ms=1)
        await stage.elapse(20)
        await store.scan_orphans(WORKFLOW, 0, lock_ttl_ms=TTL_MS)
        await stage.until(lambda: _taken(stage))
        assert (await stage.info("a")).lost == lost


async def test_progress_forgives_earlier_losses(stage: Stage) -> None:
    await _lapsed(stage)
    await stage.scan(TTL_MS)
    await stage.until(lambda: _taken(stage))
    lock = await stage.reclaim("a", lock_ttl_ms=1)
    await stage.store.append(lock, 3, [pending("0"), done("0")])
    await stage.elapse(20)
    await stage.scan(TTL_MS)
    await stage.until(lambda: _taken(stage))
    assert (await stage.info("a")).lost == 1


async def test_a_look_requeues_no_more_than_its_limit(stage: Stage) -> None:
    for run_id in ("a", "b", "c"):
        await stage.own(run_id, lock_ttl_ms=1)
    await stage.elapse(20)
    await stage.scan(TTL_MS)
    await stage.elapse(TTL_MS)
    scanned = await stage.store.scan_orphans(WORKFLOW, 0, lock_ttl_ms=TTL_MS, limit=2)
    assert scanned.requeued == 2
    assert scanned.look_again_ms is not None
    scanned = await stage.store.scan_orphans(WORKFLOW, 0, lock_ttl_ms=TTL_MS, limit=2)
    assert (scanned.requeued, scanned.look_again_ms) == (1, None)


async def test_lapsed_runs_of_an_unserved_name_are_recovered_on_demand(stage: Stage) -> None:
    await stage.own("alive", lock_ttl_ms=LONG_MS)
    await stage.own("lapsed", lock_ttl_ms=1)
    await stage.elapse(20)
    assert await stage.store.recover_pending_runs(WORKFLOW) == 1
    assert await stage.store.recover_pending_runs(WORKFLOW) == 0
    assert (await stage.info("alive")).status == "running"
    assert await stage.claimable() == ["lapsed"]


async def test_two_scanners_requeue_an_orphan_once(stage: Stage) -> None:
    other = await stage.another()
    await _lapsed(stage)
    await stage.scan(TTL_MS)
    await other.scan_orphans(WORKFLOW, 0, lock_ttl_ms=TTL_MS)
    await stage.elapse(TTL_MS)
    looks = await asyncio.gather(
        stage.store.scan_orphans(WORKFLOW, 0, lock_ttl_ms=TTL_MS),
        other.scan_orphans(WORKFLOW, 0, lock_ttl_ms=TTL_MS),
    )
    assert sorted(look.requeued for look in looks) == [0, 1]
    assert len(await stage.journal("a")) == 2
    assert await stage.claimable() == ["a"]
