"""An owner gives a run back: to its old place, and after a pause if it gets nowhere."""

from __future__ import annotations

import pytest

from pyrula.workflows.stores.base import Lock
from tests.conformance.stage import INIT, Stage, done, failed, pending
from tests.support.clock import FixedRng


async def test_a_requeued_run_keeps_its_place_in_the_queue(stage: Stage) -> None:
    lock = await stage.own("first")
    await stage.submit("second")
    assert await stage.store.requeue(lock, 2, [], backoff=False)
    assert (await stage.info("first")).status == "queued"
    assert await stage.claimable() == ["first", "second"]


async def test_a_requeue_writes_its_events(stage: Stage) -> None:
    lock = await stage.own("a")
    assert await stage.store.requeue(lock, 2, [pending("0"), done("0")], backoff=True)
    assert await stage.journal("a") == [INIT, pending("0"), done("0")]


async def test_a_requeue_repeated_after_a_lost_reply_is_still_true(stage: Stage) -> None:
    lock = await stage.own("a")
    for _ in range(2):
        assert await stage.store.requeue(lock, 2, [done("0")], backoff=False) is True
    assert await stage.journal("a") == [INIT, done("0")]
    assert await stage.claimable() == ["a"]


async def test_a_requeue_repeated_after_the_next_claim_leaves_that_owner_alone(
    stage: Stage,
) -> None:
    lock = await stage.own("a")
    await stage.store.requeue(lock, 2, [], backoff=False)
    new = await stage.reclaim("a", member="member-2")
    assert await stage.store.requeue(lock, 2, [], backoff=False) is True
    assert (await stage.store.append(new, 2, [done("0")])).length == 2
    assert await stage.claimable() == []


async def test_a_requeue_with_an_old_token_is_false_and_changes_nothing(stage: Stage) -> None:
    old = await stage.own("a")
    await stage.settle()
    await stage.reclaim("a", member="member-2")
    before = await stage.journal("a")
    assert await stage.store.requeue(old, len(before) + 1, [done("0")], backoff=False) is False
    assert await stage.journal("a") == before
    assert (await stage.info("a")).incarnation == "member-2"


async def test_a_requeue_behind_a_gap_is_false_and_writes_nothing(stage: Stage) -> None:
    lock = await stage.own("a")
    assert await stage.store.requeue(lock, 9, [done("0")], backoff=False) is False
    assert await stage.journal("a") == [INIT]


async def test_a_requeue_wakes_a_hungry_member(stage: Stage) -> None:
    lock = await stage.own("a")
    hearing = await stage.hear("member-2")
    await stage.claim(member="member-2", hungry_ms=60_000)
    await stage.store.requeue(lock, 2, [], backoff=False)
    assert (await hearing.next()).kind == "work"


async def _attempts(stage: Stage, jitter: float, *events: bytes, count: int) -> int:
    """Requeue a run with backoff `count` times; how long it waits after the last (ms)."""
    store = await stage.another(rng=FixedRng(jitter))
    await stage.submit("a")
    before = 0
    for _ in range(count):
        await stage.until(stage.claimable_now("a"))
        lock = await stage.reclaim("a", limit=1)
        length = (await stage.info("a")).events
        before = await stage.now_ms()
        assert await store.requeue(lock, length + 1, events, backoff=True)
    due = (await stage.info("a")).due_ms
    return 0 if due is None else due - before


async def test_the_first_attempt_without_progress_is_requeued_at_once(stage: Stage) -> None:
    assert await _attempts(stage, 0.9, count=1) == 0
    assert await stage.claimable() == ["a"]


@pytest.mark.parametrize(("count", "most"), [(2, 500), (3, 1_000)])
async def test_later_attempts_without_progress_wait_twice_as_long_each(
    stage: Stage, count: int, most: int
) -> None:
    # The jitter draws 90 %; a busy machine may let a little more pass before it is looked at.
    waited = await _attempts(stage, 0.9, count=count)
    assert most * 0.9 - 1 <= waited <= most * 0.9 + 400
    assert (await stage.info("a")).status == "queued"
    assert await stage.claimable() == []
    await stage.until(stage.claimable_now("a"))
    assert await stage.claimable() == ["a"]


async def test_backoff_has_full_jitter(stage: Stage) -> None:
    assert await _attempts(stage, 0.01, count=3) <= 400


@pytest.mark.parametrize("progress", [done("0"), failed("0", final=True)])
async def test_an_attempt_that_finished_a_call_never_waits(stage: Stage, progress: bytes) -> None:
    assert await _attempts(stage, 0.9, progress, count=4) == 0


@pytest.mark.parametrize("written", [pending("0"), failed("0", final=False)])
async def test_what_each_attempt_writes_anyway_is_no_progress(stage: Stage, written: bytes) -> None:
    assert await _attempts(stage, 0.9, written, count=2) > 0


async def test_progress_of_an_earlier_attempt_is_not_this_ones(stage: Stage) -> None:
    store = await stage.another(rng=FixedRng(0.9))
    lock = await stage.own("a")
    await store.requeue(lock, 2, [done("0")], backoff=True)
    for _ in range(2):
        lock = await stage.reclaim("a")
        assert await store.requeue(lock, 3, [], backoff=True)
    assert await stage.claimable() == []


async def test_a_park_ends_the_count_of_futile_attempts(stage: Stage) -> None:
    store = await stage.another(rng=FixedRng(0.9))
    lock = await stage.own("a")
    await store.requeue(lock, 2, [], backoff=True)
    lock = await stage.reclaim("a")
    await store.park(lock, 2, [], due_ms=await stage.now_ms() + 10)
    await stage.until(stage.fire)
    lock = await stage.reclaim("a")
    await store.requeue(lock, 2, [], backoff=True)
    assert await stage.claimable() == ["a"]


async def test_without_backoff_nothing_waits(stage: Stage) -> None:
    store = await stage.another(rng=FixedRng(0.9))
    lock: Lock = await stage.own("a")
    for _ in range(4):
        assert await store.requeue(lock, 2, [], backoff=False)
        lock = await stage.reclaim("a")
