"""What the memory store promises beyond the contract: shared servers, outages, lost replies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pyrula.workflows.stores.base import ClaimRequest, Hint, Lock, RunRef, Store, Submission
from pyrula.workflows.stores.errors import StoreUnavailable
from pyrula.workflows.stores.memory import MemoryServer, MemoryStore
from tests.support.clock import ManualClock

REF = RunRef("w", "a", 0)
SUBMISSION = Submission(ref=REF, init=b"{}", digest="d")


def _claim(n: int = 1, *, incarnation: str = "m", limit: int = 1) -> ClaimRequest:
    return ClaimRequest(
        workflow="w",
        shard=0,
        incarnation=incarnation,
        n=n,
        nonce="ab",
        limit=limit,
        lock_ttl_ms=1_000,
    )


async def _registered(**options: Any) -> MemoryStore:
    store = MemoryStore(1, **options)
    await store.register("w", serving=True)
    return store


async def _owned(store: MemoryStore) -> Lock:
    await store.submit(SUBMISSION)
    return (await store.claim(_claim())).runs[0].lock


async def test_it_is_a_store() -> None:
    store: Store = await _registered()
    await store.open()
    assert await store.submit(SUBMISSION)


async def test_stores_over_one_server_see_the_same_runs() -> None:
    server = MemoryServer()
    one, other = await _registered(server=server), MemoryStore(1, server=server)
    await one.submit(SUBMISSION)
    assert len((await other.claim(_claim())).runs) == 1
    assert (await one.claim(_claim(incarnation="m2"))).runs == []


async def test_stores_of_their_own_see_nothing_of_each_other() -> None:
    one, other = await _registered(), await _registered()
    await one.submit(SUBMISSION)
    assert await other.find("a") == []


async def test_store_time_is_the_clocks() -> None:
    clock = ManualClock(now=50.0)
    store = await _registered(clock=clock)
    await store.submit(SUBMISSION)
    clock.advance(1.5)
    assert store.now_ms == 51_500
    assert (await store.info(REF)).created_ms == 50_000


CALLS: list[Callable[[MemoryStore], Awaitable[Any]]] = [
    lambda store: store.ping(),
    lambda store: store.open(),
    lambda store: store.register("w", serving=False),
    lambda store: store.workflows(),
    lambda store: store.submit(SUBMISSION),
    lambda store: store.claim(_claim()),
    lambda store: store.info(REF),
    lambda store: store.find("a"),
    lambda store: store.list_runs("w", status=None, owner=None, limit=1),
    lambda store: store.recover_pending_runs("w"),
    lambda store: store.listen("m", lambda hint: None, lambda: None),
]


@pytest.mark.parametrize("call", CALLS)
async def test_a_server_that_is_down_refuses_everything(
    call: Callable[[MemoryStore], Awaitable[Any]],
) -> None:
    store = await _registered()
    await store.submit(SUBMISSION)
    store.server.go_down()
    with pytest.raises(StoreUnavailable):
        await call(store)


async def test_an_outage_loses_nothing_that_was_acknowledged() -> None:
    store = await _registered()
    lock = await _owned(store)
    store.server.go_down()
    with pytest.raises(StoreUnavailable):
        await store.append(lock, 2, [b"x"])
    with pytest.raises(StoreUnavailable):
        await store.post(lock, 2, [b"x"])
    with pytest.raises(StoreUnavailable):
        store.renewer().renew([lock], 1_000)
    store.server.come_up()
    assert (await store.append(lock, 2, [b"x"])).length == 2


async def test_coming_up_again_is_a_contact_and_a_gap_for_listeners() -> None:
    store = await _registered()
    gap = asyncio.Event()
    listener = await store.listen("m", lambda hint: None, gap.set)
    waiting = asyncio.ensure_future(store.next_contact(store.contacts))
    store.server.go_down()
    during = listener.degraded
    store.server.come_up()
    assert await waiting == store.contacts == 2
    await gap.wait()
    assert (during, listener.degraded) == (True, False)
    await listener.close()


async def test_a_caller_cancelled_in_between_has_lost_a_reply_and_not_a_request() -> None:
    store = await _registered()
    lock = await _owned(store)
    append = asyncio.ensure_future(store.append(lock, 2, [b"x"]))
    await asyncio.sleep(0)
    append.cancel()
    with pytest.raises(asyncio.CancelledError):
        await append
    assert (await store.append(lock, 2, [b"x"])).length == 2


async def test_a_post_is_applied_when_it_returns() -> None:
    store = await _registered()
    lock = await _owned(store)
    answer = store.post(lock, 2, [b"x"])
    assert store.server.shards["w", 0].runs["a"].journal == [b"{}", b"x"]
    assert (await answer).length == 2


async def test_locks_are_renewed_from_other_threads_meanwhile() -> None:
    store = await _registered()
    lock = await _owned(store)
    held: list[bool] = []

    def renew() -> None:
        renewer = store.renewer()
        held.extend(renewer.renew([lock], 1_000)[0].held for _ in range(300))

    threads = [threading.Thread(target=renew) for _ in range(3)]
    for thread in threads:
        thread.start()
    for seq in range(2, 300):
        await store.append(lock, seq, [b"x"])
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert held == [True] * 900


async def test_hints_are_never_heard_inside_the_call_that_caused_them() -> None:
    store = await _registered()
    heard: list[Hint] = []
    listener = await store.listen("m", heard.append, lambda: None)
    await store.claim(_claim())
    submit = store.submit(SUBMISSION)
    submit.send(None)  # up to where its answer is on the way
    assert heard == []
    submit.close()
    await asyncio.sleep(0)
    assert [hint.kind for hint in heard] == ["work"]
    await listener.close()


async def test_a_listener_whose_loop_is_gone_harms_nobody() -> None:
    store = await _registered()

    async def listen() -> None:
        await store.listen("m", lambda hint: None, lambda: None)

    await asyncio.to_thread(asyncio.run, listen())
    await store.claim(_claim())
    assert await store.submit(SUBMISSION)


async def test_a_tombstone_lasts_ten_minutes() -> None:
    clock = ManualClock()
    store = await _registered(clock=clock)
    await store.settle_death("w", 0, incarnation="m", cause="killed", lost=None)
    clock.advance(599.9)
    await store.submit(SUBMISSION)
    with pytest.raises(Exception, match="buried"):
        await store.claim(_claim(n=1))
    clock.advance(0.2)
    assert len((await store.claim(_claim(n=1))).runs) == 1


async def test_a_long_life_of_losses_waits_half_a_minute_at_most() -> None:
    clock = ManualClock()
    store = await _registered(clock=clock, rng=_Always())
    await store.submit(SUBMISSION)
    waits: list[int] = []
    for n in range(1, 12):
        lock = (await store.claim(_claim(n))).runs[0].lock
        before = store.now_ms
        await store.requeue(lock, 2, [], backoff=True)
        due = (await store.info(REF)).due_ms
        waits.append(0 if due is None else due - before)
        clock.advance(31)
        await store.fire_timers("w", 0, limit=1)
    assert waits == [0, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000, 30_000]


class _Always:
    """The longest draw, rounded up to what `random` never quite reaches."""

    def random(self) -> float:
        return 1.0
