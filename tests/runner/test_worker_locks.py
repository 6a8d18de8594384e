"""Locks: renewed over a blocked loop, up to a bound; lost ones end the attempt, orphans move on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from pyrula.workflows.client import RunHandle, WorkflowClient
from pyrula.workflows.engine.context import Context
from pyrula.workflows.engine.registry import workflow
from pyrula.workflows.stores.base import ClaimRequest, RunRef
from pyrula.workflows.stores.events import RunRequeued, StepDone
from pyrula.workflows.stores.memory.store import MemoryStore
from tests.support.until import eventually
from tests.support.workers import SHARDS, serving

TTL = 0.3
OPTIONS: dict[str, Any] = {"lock_ttl": TTL, "orphan_scan_interval": 0.1}


async def take_over(store: MemoryStore, handle: RunHandle) -> None:
    """Requeue the run as if its worker were known to be dead."""
    info = await handle.info()
    assert info.incarnation is not None
    await store.settle_death(
        handle.name, info.ref.shard, incarnation=info.incarnation, cause="killed", lost=[]
    )


async def test_a_run_whose_lock_was_taken_unwinds_and_writes_nothing_more() -> None:
    begun, seen = asyncio.Event(), list[str]()

    @workflow(name="taken")
    async def taken(ctx: Context) -> str:
        async def wait() -> None:
            begun.set()
            await asyncio.Event().wait()

        try:
            await ctx.step("wait", wait)
        except Exception:  # noqa: BLE001  what a body may well do
            seen.append("caught as an Exception")
        finally:
            seen.append("unwound")
        return "wrong"

    store = MemoryStore(SHARDS)
    # A claim would find the member buried and stop the worker: the renewal must be what finds out.
    async with serving(store, taken, **OPTIONS, claim_poll_interval=60.0) as worker:
        handle = await worker.client.submit("taken", {})
        await begun.wait()
        await take_over(store, handle)
        before = await handle.events()
        await eventually(lambda: worker.runs == 0)
        assert seen == ["unwound"]
        assert await handle.events() == before
        assert await handle.status() == "queued"


_blocked: set[str] = set()


@workflow(name="blocking")
async def blocking(ctx: Context, seconds: float) -> str:
    """Blocks the loop, on its first attempt."""
    if ctx.run_id not in _blocked:
        _blocked.add(ctx.run_id)
        time.sleep(seconds)  # noqa: ASYNC251  the fault under test
    return "done"


async def scanning(store: MemoryStore, until: asyncio.Event) -> int:
    """Look for orphans every 50 ms; how many were requeued."""
    requeued = 0
    while not until.is_set():
        for shard in range(SHARDS):
            scanned = await store.scan_orphans("blocking", shard, lock_ttl_ms=int(TTL * 1000))
            requeued += scanned.requeued
        await asyncio.sleep(0.05)
    return requeued


async def blocked_for(seconds: float) -> int:
    """How often the run was taken away while its body blocked the loop of its worker."""
    store, over = MemoryStore(SHARDS), asyncio.Event()
    await store.register("blocking", serving=True)
    client = WorkflowClient(store)
    handle = await client.submit("blocking", {"seconds": seconds})
    scan = asyncio.create_task(scanning(store, over))
    mine = MemoryStore(SHARDS, server=store.server)
    try:
        await asyncio.to_thread(asyncio.run, _one_attempt(mine, handle.run_id))
    finally:
        over.set()
    await client.close()
    return await scan


async def _one_attempt(store: MemoryStore, run_id: str) -> None:
    options = {"lock_ttl": TTL, "orphan_scan_interval": 60.0, "shutdown_grace": 5.0}
    async with serving(store, blocking, **options):
        await eventually(lambda: run_id in _blocked)


async def test_a_blocked_loop_keeps_its_lock_within_the_bound() -> None:
    assert await blocked_for(2.5 * TTL) == 0


async def test_a_loop_blocked_past_three_lifetimes_loses_its_lock() -> None:
    assert await blocked_for(6 * TTL) == 1


async def test_a_dead_workers_run_is_recovered_within_lock_ttl_and_one_scan() -> None:
    @workflow(name="orphaned")
    async def orphaned(ctx: Context) -> Any:
        return await ctx.step("one", lambda: "recovered")

    store = MemoryStore(1)
    await store.register("orphaned", serving=True)
    client = WorkflowClient(store)
    handle = await client.submit("orphaned", {})
    # The dead worker: it claimed and never came back.
    claimed = await store.claim(
        ClaimRequest(
            workflow="orphaned",
            shard=0,
            incarnation="dead",
            n=1,
            nonce="0" * 32,
            limit=1,
            lock_ttl_ms=int(TTL * 1000),
        )
    )
    assert claimed.runs[0].lock.ref == RunRef("orphaned", handle.run_id, 0)
    died = time.monotonic()
    async with serving(store, orphaned, **OPTIONS):
        assert await handle.result(timeout=5) == "recovered"
    assert TTL * 0.8 < time.monotonic() - died < TTL + 0.1 + 1.0
    events = await handle.events()
    assert [(e.reason, e.lost) for e in events if isinstance(e, RunRequeued)] == [
        ("worker_lost", 1)
    ]
    assert sum(isinstance(e, StepDone) for e in events) == 1
    await client.close()


async def test_a_living_worker_is_never_taken_for_dead() -> None:
    go_on = asyncio.Event()

    @workflow(name="living")
    async def living(ctx: Context) -> str:
        await go_on.wait()
        return "done"

    store = MemoryStore(SHARDS)
    other = MemoryStore(SHARDS, server=store.server)
    async with serving(store, living, **OPTIONS) as worker, serving(other, living, **OPTIONS):
        handles = [await worker.client.submit("living", {}) for _ in range(10)]
        later_ms = store.now_ms + 4 * TTL * 1000
        await eventually(lambda: store.now_ms > later_ms)
        infos = [await handle.info() for handle in handles]
        assert {(info.epoch, info.lost, info.status) for info in infos} == {(1, 0, "running")}
        go_on.set()
        for handle in handles:
            await handle.result(timeout=5)
        await worker.client.close()
