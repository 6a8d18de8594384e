"""Waiting for a run: woken and not polled, whatever becomes of the wake-up; how runs end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest

from pyrula.workflows.client import RunHandle, WorkflowClient
from pyrula.workflows.engine.context import Context
from pyrula.workflows.engine.registry import workflow
from pyrula.workflows.stores.base import Listener, RunRef, Store, Watch
from pyrula.workflows.stores.errors import (
    ResultTimeout,
    RunCancelledError,
    RunFailedError,
    RunFinishedError,
    RunNotFoundError,
    StoreUnavailable,
)
from pyrula.workflows.stores.events import RunComplete, RunInit, StepDone, StepPending
from pyrula.workflows.stores.valkey.store import ValkeyStore
from pyrula.workflows.worker.options import WorkerOptions
from pyrula.workflows.worker.worker import WorkflowWorker
from tests.runner.conftest import StoreFactory
from tests.support.until import eventually, eventually_async
from tests.support.valkey import ValkeyServer

gates: dict[str, asyncio.Event] = {}


@dataclass(frozen=True)
class Point:
    x: int
    y: int


@workflow(name="client_gated")
async def gated(ctx: Context, size: int = 1) -> str:
    """Ends when the test opens the gate of this run."""
    await gates.setdefault(ctx.run_id, asyncio.Event()).wait()
    return "x" * size


@workflow(name="client_point")
async def point(ctx: Context) -> Point:
    made: Point = await ctx.step("make", make_point)
    return made


async def make_point() -> Point:
    return Point(1, 2)


@workflow(name="client_sleeps")
async def sleeps(ctx: Context) -> None:
    await ctx.sleep(3_600)


@workflow(name="client_fails")
async def fails(ctx: Context) -> None:
    raise LookupError("nothing there")


class Counting:
    """Passes everything on to a store and counts the looks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.looks = 0
        self.failed = 0

    async def watch(self, ref: RunRef, member: str) -> Watch:
        self.looks += 1
        try:
            return await self._store.watch(ref, member)
        except StoreUnavailable:
            self.failed += 1
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@asynccontextmanager
async def served(store: Store) -> AsyncGenerator[WorkflowClient]:
    """A client, and a worker for the workflows above that ends with the block."""
    options = WorkerOptions(shutdown_grace=0.1, claim_poll_interval=0.05, lock_ttl=5)
    worker = WorkflowWorker(store=store, workflows=[gated, point, sleeps, fails], options=options)
    serving = asyncio.create_task(worker.run())
    client = WorkflowClient(store)
    try:
        yield client
    finally:
        await client.close()
        worker.stop()
        await serving


async def started(run: RunHandle) -> None:
    await eventually(lambda: run.run_id in gates, 10, "the body to wait at its gate")


async def waiting(client: WorkflowClient, count: int = 1) -> None:
    """Until so many results have looked and wait to be woken."""
    await eventually(lambda: sum(map(len, client._watched.values())) == count, 5)


async def test_a_result_is_woken_by_the_end_and_looks_once(make_store: StoreFactory) -> None:
    async with make_store() as store, served(store):
        counting = Counting(store)
        client = WorkflowClient(cast("Store", counting))
        run = await client.submit(gated)
        results = [asyncio.create_task(run.result(timeout=20)) for _ in range(3)]
        await started(run)
        await eventually(lambda: counting.looks == 3, 5)
        await waiting(client, 3)
        gates[run.run_id].set()
        async with asyncio.timeout(5):
            assert await asyncio.gather(*results) == ["x"] * 3
        assert counting.looks == 3
        assert client._watched == {}
        assert client._arrived == {}
        await client.close()


async def test_a_result_that_is_too_big_for_a_hint_is_fetched(make_store: StoreFactory) -> None:
    async with make_store() as store, served(store) as client:
        run = await client.submit(gated, {"size": 500_000})
        result = asyncio.create_task(run.result(timeout=20))
        await started(run)
        gates[run.run_id].set()
        async with asyncio.timeout(5):
            assert await result == "x" * 500_000
        other = WorkflowClient(store)
        assert len(await other.handle(gated, run.run_id).result()) == 500_000
        await other.close()


async def test_a_wait_that_is_over_leaves_the_run_alone(make_store: StoreFactory) -> None:
    async with make_store() as store, served(store) as client:
        run = await client.submit(gated)
        with pytest.raises(ResultTimeout):
            await run.result(timeout=0.05)
        with pytest.raises(ResultTimeout):
            await run.result(timeout=0)
        assert client._watched == {}
        await started(run)
        gates[run.run_id].set()
        assert await run.result(timeout=10) == "x"
        assert await run.status() == "completed"


async def test_a_result_is_plain_json_or_what_was_asked_for(make_store: StoreFactory) -> None:
    async with make_store() as store, served(store) as client:
        run = await client.submit(point)
        assert await run.result(timeout=10) == {"x": 1, "y": 2}
        assert await run.result(timeout=10, as_type=Point) == Point(1, 2)
        kinds = [type(event) for event in await run.events()]
        assert kinds == [RunInit, StepPending, StepDone, RunComplete]


async def test_a_failed_run_raises_what_it_ended_with(make_store: StoreFactory) -> None:
    async with make_store() as store, served(store) as client:
        run = await client.submit(fails)
        with pytest.raises(RunFailedError) as failed:
            await run.result(timeout=10)
        assert failed.value.code == "workflow_failed"
        assert (failed.value.error_type, failed.value.message) == ("LookupError", "nothing there")
        with pytest.raises(RunFinishedError):
            await run.cancel()


async def test_a_cancelled_run_raises_that(make_store: StoreFactory) -> None:
    async with make_store() as store, served(store) as client:
        run = await client.submit(sleeps)
        result = asyncio.create_task(run.result(timeout=20))

        async def parked() -> bool:
            return await run.status() == "sleeping"

        await eventually_async(parked, 10)
        await run.cancel()
        async with asyncio.timeout(5):
            with pytest.raises(RunCancelledError):
                await result
        assert await run.status() == "cancelled"


async def test_a_run_that_is_not_there_is_said_to_be_so(make_store: StoreFactory) -> None:
    async with make_store() as store:
        await store.open()
        client = WorkflowClient(store)
        run = client.handle("client_gated", "nobody")
        for ask in (run.info, run.status, run.result, run.events, run.cancel):
            with pytest.raises(RunNotFoundError):
                await ask()
        await client.close()


async def test_a_lost_subscription_costs_time_and_no_result(
    private_valkey: Callable[..., ValkeyServer],
) -> None:
    server = private_valkey()
    store = ValkeyStore(server.url, shard_count=2)
    async with served(store) as client:
        run = await client.submit(gated)
        result = asyncio.create_task(run.result(timeout=20))
        await started(run)
        await waiting(client)
        server.command("CLIENT", "KILL", "TYPE", "pubsub")
        gates[run.run_id].set()
        async with asyncio.timeout(5):
            assert await result == "x"
    await store.close()


async def test_a_result_outlives_an_outage_of_the_server(
    private_valkey: Callable[..., ValkeyServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyrula.workflows.client.POLL_S", 0.02)
    server = private_valkey(aof="always")
    store = ValkeyStore(server.url, shard_count=2)
    async with served(store):
        counting = Counting(store)
        client = WorkflowClient(cast("Store", counting))
        run = await client.submit(gated)
        result = asyncio.create_task(run.result(timeout=25))
        await started(run)
        await waiting(client)
        server.kill()
        # Until a look has failed: the store gives up on a request after a second.
        await eventually(lambda: counting.failed > 0, 10)
        server.start()
        gates[run.run_id].set()
        assert await result == "x"
        await client.close()
    await store.close()


async def test_a_result_of_a_store_that_is_away_is_refused(
    private_valkey: Callable[..., ValkeyServer],
) -> None:
    server = private_valkey()
    store = ValkeyStore(server.url, shard_count=2)
    await store.open()
    client = WorkflowClient(store)
    run = await client.submit("client_gated")
    server.kill()
    with pytest.raises(StoreUnavailable):
        await run.result(timeout=10)
    await client.close()
    await store.close()


class Blinking(Counting):
    """Its second look fails, and the hint is lost; all the same the subscription is up."""

    on_gap: Callable[[], None]

    async def watch(self, ref: RunRef, member: str) -> Watch:
        watch = await super().watch(ref, member)
        if self.looks == 2:
            raise StoreUnavailable("not back yet")
        return watch

    async def listen(self, member: str, on_hint: object, on_gap: Callable[[], None]) -> Listener:
        self.on_gap = on_gap
        return await self._store.listen(member, lambda hint: None, on_gap)


async def test_a_look_that_failed_is_repeated_soon(make_store: StoreFactory) -> None:
    async with make_store() as store, served(store):
        blinking = Blinking(store)
        client = WorkflowClient(cast("Store", blinking))
        run = await client.submit("client_gated")
        await started(run)
        result = asyncio.create_task(run.result())
        await eventually(lambda: blinking.looks == 1, 10)
        blinking.on_gap()
        await eventually(lambda: blinking.looks == 2, 10)
        gates[run.run_id].set()
        async with asyncio.timeout(10):
            assert await result == "x"
        await client.close()
