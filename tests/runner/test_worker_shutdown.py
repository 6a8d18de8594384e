"""The five ordered steps of a graceful shutdown, and bodies that don't cooperate."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import structlog
from structlog.testing import capture_logs

from pyrula.workflows.client import RunHandle
from pyrula.workflows.engine.context import Context
from pyrula.workflows.engine.registry import workflow
from pyrula.workflows.stores.base import ClaimReply, ClaimRequest, Lock
from pyrula.workflows.stores.events import RunRequeued
from pyrula.workflows.stores.memory.store import MemoryStore
from tests.support.until import eventually, until
from tests.support.workers import SHARDS, make_worker, serving


async def reasons(handle: RunHandle) -> list[str]:
    """Why the run went back to its queue, each time."""
    return [event.reason for event in await handle.events() if isinstance(event, RunRequeued)]


async def test_stop_waits_for_runs_in_flight_and_claims_nothing_more() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @workflow(name="finishing")
    async def finishing(ctx: Context) -> Any:
        begun.set()
        await go_on.wait()
        return await ctx.step("last", lambda: "finished")

    worker = make_worker(MemoryStore(SHARDS), finishing, shutdown_grace=5)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: worker._loop)
    first = await worker.client.submit("finishing", {})
    await begun.wait()
    worker.stop()
    await eventually(lambda: worker.core.draining)
    second = await worker.client.submit("finishing", {})
    worker.poll()
    go_on.set()
    await running
    assert await first.result(timeout=1) == "finished"
    assert await second.status() == "queued"


async def test_what_outlasts_the_grace_is_cancelled_and_goes_back_uncharged() -> None:
    seen: list[str] = []

    @workflow(name="outlasting")
    async def outlasting(ctx: Context) -> None:
        try:
            await ctx.step("long", asyncio.sleep, 60)
        finally:
            seen.append("unwound")

    begun = time.monotonic()
    async with serving(
        MemoryStore(SHARDS), outlasting, shutdown_grace=0.2, cancel_timeout=5
    ) as worker:
        handles = [await worker.client.submit("outlasting", {}) for _ in range(5)]
        await eventually(lambda: worker.runs == 5)
    assert 0.2 <= time.monotonic() - begun < 3
    assert seen == ["unwound"] * 5
    for handle in handles:
        assert await reasons(handle) == ["drained"]
        info = await handle.info()
        assert (info.status, info.lost) == ("queued", 0)


async def test_a_body_that_swallows_its_cancel_is_abandoned_and_writes_nothing() -> None:
    begun, let_go, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @workflow(name="stubborn")
    async def stubborn(ctx: Context) -> Any:
        async def deaf() -> str:
            begun.set()
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    continue
            return "too late"

        try:
            return await ctx.step("deaf", deaf)
        finally:
            ended.set()

    store = MemoryStore(SHARDS)
    started = time.monotonic()
    async with serving(store, stubborn, shutdown_grace=0.1, cancel_timeout=0.2) as worker:
        handle = await worker.client.submit("stubborn", {})
        await begun.wait()
    assert time.monotonic() - started < 1.5
    assert await reasons(handle) == ["drained"]
    before = await handle.events()
    let_go.set()
    await ended.wait()
    await eventually(lambda: worker.core.slots.free == worker.core.slots.total)
    assert await handle.events() == before
    assert await handle.status() == "queued"


async def test_a_hung_sync_step_delays_the_end_by_one_cancel_timeout_and_is_logged() -> None:
    hanging, release = threading.Event(), threading.Event()

    def hang() -> None:
        hanging.set()
        release.wait(20)

    @workflow(name="hung")
    async def hung(ctx: Context) -> None:
        await ctx.step("hang", hang)

    structlog.reset_defaults()
    with capture_logs() as logs:
        async with serving(
            MemoryStore(SHARDS), hung, shutdown_grace=0.1, cancel_timeout=0.3
        ) as worker:
            handle = await worker.client.submit("hung", {})
            await eventually(hanging.is_set)
            stopped = time.monotonic()
        took = time.monotonic() - stopped
    release.set()
    assert 0.4 <= took < 1.5
    assert [e["calls"] for e in logs if e["event"] == "worker_thread_calls_still_running"] == [1]
    events = [e["event"] for e in logs]
    assert events.index("worker_draining") < events.index("run_requeued")
    assert events[-1] == "worker_stopped"
    assert await reasons(handle) == ["drained"]
    names = {thread.name: thread.daemon for thread in threading.enumerate()}
    assert all(daemon for name, daemon in names.items() if name.startswith("pyrula-"))


class HoldsClaims(MemoryStore):
    """Answers claims that took something only when the test says so."""

    def __init__(self) -> None:
        super().__init__(1)
        self.took = asyncio.Event()
        self.answer = asyncio.Event()

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        reply = await super().claim(request)
        if reply.runs:
            self.took.set()
            await self.answer.wait()
        return reply


async def test_a_claim_that_is_answered_after_the_grace_goes_back_unrun() -> None:
    entered = 0

    @workflow(name="latecomer")
    async def latecomer(ctx: Context) -> None:
        nonlocal entered
        entered += 1
        await asyncio.Event().wait()

    @workflow(name="holding")
    async def holding(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            store.answer.set()

    store = HoldsClaims()
    store.answer.set()
    async with serving(store, holding, latecomer, shutdown_grace=0.1) as worker:
        await worker.client.submit("holding", {})
        await eventually(lambda: worker.runs == 1)
        store.answer.clear()
        store.took.clear()
        handle = await worker.client.submit("latecomer", {})
        await store.took.wait()
    assert entered == 0
    assert await reasons(handle) == ["drained"]


class Refusing(MemoryStore):
    """No requeue is ever acknowledged."""

    async def requeue(
        self, lock: Lock, first_seq: int, events: Sequence[bytes], *, backoff: bool
    ) -> bool:
        await asyncio.Event().wait()
        return False


async def test_a_store_that_does_not_answer_delays_the_end_by_a_bounded_time() -> None:
    @workflow(name="unreturned")
    async def unreturned(ctx: Context) -> None:
        await asyncio.Event().wait()

    options = {"shutdown_grace": 0.1, "cancel_timeout": 0.2}
    async with serving(Refusing(SHARDS), unreturned, **options) as worker:
        await worker.client.submit("unreturned", {})
        await eventually(lambda: worker.runs == 1)
        stopped = time.monotonic()
    assert time.monotonic() - stopped < 0.1 + 3 * 0.2 + 0.5


async def test_stop_works_from_a_thread_twice_and_before_run() -> None:
    @workflow(name="idle")
    async def idle(ctx: Context) -> None:
        pass

    worker = make_worker(MemoryStore(SHARDS), idle)
    worker.stop()
    worker.stop()
    await worker.run()

    worker = make_worker(MemoryStore(SHARDS), idle)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: worker._loop)
    stopper = threading.Thread(target=worker.stop)
    stopper.start()
    worker.stop()
    await running
    until(lambda: not stopper.is_alive())
    worker.stop()


async def test_a_saturated_pool_is_said_once_and_a_queued_call_of_a_stopped_run_never_begins() -> (
    None
):
    release, calls = threading.Event(), list[int]()

    @workflow(name="saturating")
    async def saturating(ctx: Context, number: int) -> None:
        def call() -> None:
            calls.append(number)
            release.wait(20)

        await ctx.step("call", call)

    structlog.reset_defaults()
    with capture_logs() as logs:
        async with serving(
            MemoryStore(SHARDS), saturating, shutdown_grace=0.1, cancel_timeout=0.2
        ) as worker:
            for number in range(40):
                await worker.client.submit("saturating", {"number": number})
            await eventually(lambda: worker.runs == 40)
            await eventually(lambda: len(calls) >= 5)
        in_threads = len(calls)
    assert [e["event"] for e in logs].count("user_code_threads_saturated") == 1
    release.set()
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("pyrula-step")])
    assert len(calls) == in_threads < 40
