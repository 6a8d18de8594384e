"""What ends a worker, what only ends an attempt, and what ends nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest

from pyrula.workflows.engine.context import Context
from pyrula.workflows.engine.registry import workflow
from pyrula.workflows.stores.base import (
    ClaimReply,
    ClaimRequest,
    Fired,
    JournalPage,
    Lock,
    RenewReply,
    RunRef,
    Status,
)
from pyrula.workflows.stores.errors import StoreEmptied, StoreUnavailable
from pyrula.workflows.stores.events import RunRequeued, StepDone
from pyrula.workflows.stores.memory.store import MemoryRenewer, MemoryStore
from tests.support.until import eventually, eventually_async
from tests.support.workers import SHARDS, make_worker, serving


@workflow(name="stepping")
async def stepping(ctx: Context) -> str:
    await ctx.step("one", lambda: 1)
    return "done"


class Emptied(MemoryStore):
    """Its data was lost."""

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        raise StoreEmptied("expected the shard to be registered, found it missing")


async def test_a_store_that_lost_its_data_stops_the_worker() -> None:
    worker = make_worker(Emptied(SHARDS), stepping)
    with pytest.raises(StoreEmptied):
        await worker.run()


class Broken(MemoryStore):
    """Its timers have a fault of our own."""

    async def fire_timers(self, workflow: str, shard: int, *, limit: int) -> Fired:
        raise ZeroDivisionError("a fault in a loop")


async def test_a_fault_in_a_loop_is_raised_from_run_and_everything_is_closed() -> None:
    store = Broken(SHARDS)
    worker = make_worker(store, stepping)
    with pytest.raises(ZeroDivisionError, match="a fault in a loop"):
        await worker.run()
    # Every task of the worker is gone (the harness checks) and nobody listens any more.
    assert not store.server._ears


class Unrenewable(MemoryStore):
    """Renewal breaks in a way that no retry mends."""

    def renewer(self) -> MemoryRenewer:
        return _Failing(self.server)


class _Failing(MemoryRenewer):
    def renew(self, locks: Sequence[Lock], ttl_ms: int) -> list[RenewReply]:
        raise StoreEmptied("expected the run's shard, found it missing")


async def test_a_renewal_thread_that_ends_stops_the_worker() -> None:
    @workflow(name="lingering")
    async def lingering(ctx: Context) -> None:
        await asyncio.sleep(5)

    store = Unrenewable(SHARDS)
    worker = make_worker(store, lingering, lock_ttl=0.3, shutdown_grace=0.1)
    await worker.client.submit("lingering", {})
    with pytest.raises(StoreEmptied):
        await worker.run()


async def test_an_error_of_readiness_closes_what_was_begun() -> None:
    async def not_ready() -> None:
        raise OSError("the parent is gone")

    with pytest.raises(OSError, match="the parent is gone"):
        await make_worker(MemoryStore(SHARDS), stepping).run(not_ready)


async def test_a_cancelled_run_of_the_worker_leaves_no_body_behind() -> None:
    begun = asyncio.Event()

    @workflow(name="cancelled_with_worker")
    async def endless(ctx: Context) -> None:
        begun.set()
        await asyncio.Event().wait()

    worker = make_worker(MemoryStore(SHARDS), endless)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: worker.core.store.contacts)
    await worker.client.submit("cancelled_with_worker", {})
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(lambda: worker.runs == 0)


class FaultyOnce(MemoryStore):
    """The first end of a run fails in a way that nobody knows of."""

    faults = 1

    async def finish(
        self, lock: Lock, first_seq: int, events: Sequence[bytes], *, status: Status
    ) -> None:
        if self.faults:
            self.faults -= 1
            raise ZeroDivisionError("a fault in the store")
        await super().finish(lock, first_seq, events, status=status)


async def test_a_fault_in_an_attempt_gives_the_run_back_and_the_worker_goes_on() -> None:
    store = FaultyOnce(SHARDS)
    async with serving(store, stepping) as worker:
        handle = await worker.client.submit("stepping", {})
        assert await handle.result(timeout=5) == "done"
        events = await handle.events()
        assert [e.reason for e in events if isinstance(e, RunRequeued)] == ["stood_down"]
        assert sum(isinstance(e, StepDone) for e in events) == 1
        await worker.client.close()


# Claims


class LosesAnswers(MemoryStore):
    """Applies claims, but loses the answer of those that took something, `losses` times."""

    losses = 1
    requests: list[ClaimRequest]

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        self.requests.append(request)
        reply = await super().claim(request)
        if reply.runs and self.losses:
            self.losses -= 1
            self.server.contacts += 1
            raise StoreUnavailable("expected a reply, found the connection cut")
        return reply


async def test_a_claim_whose_answer_was_lost_is_asked_again_with_the_same_counter() -> None:
    store = LosesAnswers(1)
    store.requests = []
    async with serving(store, stepping, max_concurrent_runs=2) as worker:
        handle = await worker.client.submit("stepping", {})
        assert await handle.result(timeout=5) == "done"
        await worker.client.close()
    assert store.losses == 0
    assert any(first == again for first, again in pairwise(store.requests))
    numbers = [request.n for request in store.requests]
    assert sorted(set(numbers)) == list(range(1, max(numbers) + 1))


async def test_a_lost_claim_keeps_its_slots() -> None:
    store, most = LosesAnswers(1), 0
    store.requests, store.losses = [], 3

    @workflow(name="crowded")
    async def crowded(ctx: Context) -> None:
        nonlocal most
        most = max(most, worker.runs)
        await asyncio.sleep(0.005)

    async with serving(store, crowded, max_concurrent_runs=2) as worker:
        handles = [await worker.client.submit("crowded", {}) for _ in range(12)]
        for handle in handles:
            await handle.result(timeout=5)
        await worker.client.close()
        assert most <= 2
        await eventually(lambda: worker.core.slots.free == 2)


class SlowClaims(MemoryStore):
    """A claim waits, before it is applied and after, until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__(1)
        self.applied = asyncio.Event()
        self.answer = asyncio.Event()

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        reply = await super().claim(request)
        self.applied.set()
        await self.answer.wait()
        return reply


async def test_a_hint_during_a_claim_in_flight_is_not_lost() -> None:
    store = SlowClaims()
    async with serving(store, stepping, claim_poll_interval=30.0) as worker:
        await store.applied.wait()  # the shard was found empty, its answer is on its way
        handle = await worker.client.submit("stepping", {})
        worker.hint("stepping", 0)
        store.answer.set()
        assert await handle.result(timeout=5) == "done"
        await worker.client.close()


# Outages


async def test_runs_of_an_outage_are_requeued_at_the_first_contact() -> None:
    store = MemoryStore(SHARDS)
    middle, go_on = asyncio.Event(), asyncio.Event()

    @workflow(name="interrupted")
    async def interrupted(ctx: Context) -> str:
        await ctx.step("before", lambda: 1)

        async def body() -> None:
            middle.set()
            await go_on.wait()

        await ctx.step("during", body)
        return "done"

    async with serving(store, interrupted, claim_poll_interval=0.05) as worker:
        handle = await worker.client.submit("interrupted", {})
        await middle.wait()
        store.server.go_down()
        go_on.set()
        await eventually(lambda: worker.runs == 0)
        begun = time.monotonic()
        store.server.come_up()
        assert await handle.result(timeout=5) == "done"
        assert time.monotonic() - begun < 2
        events = await handle.events()
        assert [e.reason for e in events if isinstance(e, RunRequeued)] == ["store_unavailable"]
        assert (await handle.info()).lost == 0
        await worker.client.close()


class CountsRenewals(MemoryStore):
    """Requeues fail until the test allows them; renewals are counted."""

    renewals = 0
    requeues_fail = True

    async def requeue(
        self, lock: Lock, first_seq: int, events: Sequence[bytes], *, backoff: bool
    ) -> bool:
        if self.requeues_fail:
            raise StoreUnavailable("expected the store to take writes, found it full")
        return await super().requeue(lock, first_seq, events, backoff=backoff)

    def renewer(self) -> MemoryRenewer:
        return _Counting(self)


class _Counting(MemoryRenewer):
    def __init__(self, store: CountsRenewals) -> None:
        super().__init__(store.server)
        self._store = store

    def renew(self, locks: Sequence[Lock], ttl_ms: int) -> list[RenewReply]:
        self._store.renewals += 1
        return super().renew(locks, ttl_ms)


async def test_a_run_that_is_owed_to_its_queue_keeps_its_lock() -> None:
    store = CountsRenewals(SHARDS)

    @workflow(name="given_up")
    async def given_up(ctx: Context) -> str:
        if store.requeues_fail:
            raise StoreUnavailable("expected an answer, found none")
        return "done"

    async with serving(store, given_up, lock_ttl=0.15, orphan_scan_interval=0.05) as worker:
        handle = await worker.client.submit("given_up", {})
        await eventually(lambda: store.renewals >= 8)  # more than two lifetimes of the lock
        info = await handle.info()
        assert (info.status, info.lost, info.epoch) == ("running", 0, 1)
        store.requeues_fail = False
        store.server.come_up()
        assert await handle.result(timeout=5) == "done"
        await worker.client.close()


async def test_timers_and_orphans_missed_in_an_outage_do_not_wait_for_the_next_round() -> None:
    store = MemoryStore(SHARDS)

    @workflow(name="dozing")
    async def dozing(ctx: Context) -> None:
        await ctx.sleep(0.3)

    options = {"timer_poll_interval_s": 60.0, "orphan_scan_interval": 60.0}
    async with serving(store, dozing, **options) as worker:
        handle = await worker.client.submit("dozing", {})

        async def asleep() -> bool:
            return await handle.status() == "sleeping"

        await eventually_async(asleep)
        due_ms = (await handle.info()).due_ms or 0
        store.server.go_down()
        await eventually(lambda: store.now_ms > due_ms + 100)
        store.server.come_up()
        await handle.result(timeout=5)
        await worker.client.close()


# Locks


class Stalls(MemoryStore):
    """Reading the journal takes until the test says so."""

    def __init__(self) -> None:
        super().__init__(1)
        self.reading = asyncio.Event()
        self.read = asyncio.Event()

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        return await super().claim(_without_pages(request))

    async def read_journal(
        self, ref: RunRef, first_seq: int, *, max_events: int = 1_000, max_bytes: int = 8 << 20
    ) -> JournalPage:
        self.reading.set()
        await self.read.wait()
        return await super().read_journal(ref, first_seq, max_events=max_events)


def _without_pages(request: ClaimRequest) -> ClaimRequest:
    return msgspec.structs.replace(request, byte_budget=0)


async def test_a_run_that_stands_down_while_its_journal_is_fetched_never_runs() -> None:
    store, entered = Stalls(), 0

    @workflow(name="fetched")
    async def fetched(ctx: Context) -> str:
        nonlocal entered
        entered += 1
        return "done"

    async with serving(store, fetched, shutdown_grace=0.05) as worker:
        handle = await worker.client.submit("fetched", {})
        await store.reading.wait()
    store.read.set()
    assert entered == 0
    events = await handle.events()
    assert [e.reason for e in events if isinstance(e, RunRequeued)] == ["drained"]
    assert await handle.status() == "queued"
    async with serving(store, fetched):
        assert await handle.result(timeout=5) == "done"
    await worker.client.close()
