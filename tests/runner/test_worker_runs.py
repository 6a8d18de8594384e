"""A worker and its runs: executed, woken, cancelled, never more than there is room for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pyrula.workflows.client import RunHandle, WorkflowClient
from pyrula.workflows.engine.context import Context
from pyrula.workflows.engine.registry import workflow
from pyrula.workflows.stores.base import Store
from pyrula.workflows.stores.errors import ConfigurationError, RunCancelledError, RunFailedError
from pyrula.workflows.stores.memory.store import MemoryStore
from pyrula.workflows.stores.valkey.store import ValkeyStore
from pyrula.workflows.worker.worker import WorkflowWorker
from tests.support.until import eventually, eventually_async
from tests.support.workers import SHARDS, make_worker, serving

SLOW = {"claim_poll_interval": 30.0, "timer_poll_interval_s": 60.0}


@pytest.fixture(params=["memory", "valkey"])
def kept(request: pytest.FixtureRequest) -> Store:
    """A store of each kind, not yet open."""
    if request.param == "memory":
        return MemoryStore(SHARDS)
    url, namespace = map(request.getfixturevalue, ("valkey_url", "namespace"))
    return ValkeyStore(url, namespace=namespace, shard_count=SHARDS)


@asynccontextmanager
async def opened(store: Store) -> AsyncGenerator[WorkflowClient]:
    """The store's client; both closed at the end."""
    await store.open()
    client = WorkflowClient(store)
    try:
        yield client
    finally:
        await client.close()
        await store.close()


async def has_status(handle: RunHandle, status: str) -> None:
    async def reached() -> bool:
        return await handle.status() == status

    await eventually_async(reached, what=f"the run is {status}")


@workflow(name="two_steps")
async def two_steps(ctx: Context, who: str) -> Any:
    first: str = await ctx.step("first", lambda: f"hello {who}")
    return await ctx.step("second", first.upper)


async def test_a_run_goes_through_its_steps(kept: Store) -> None:
    async with opened(kept) as client, serving(kept, two_steps):
        handle = await client.submit("two_steps", {"who": "you"})
        assert await handle.result(timeout=5) == "HELLO YOU"
        assert [type(event).__name__ for event in await handle.events()] == [
            "RunInit",
            "StepPending",
            "StepDone",
            "StepPending",
            "StepDone",
            "RunComplete",
        ]


async def test_a_submit_is_claimed_without_waiting_for_a_poll(kept: Store) -> None:
    async with opened(kept) as client, serving(kept, two_steps, **SLOW):
        for _ in range(3):
            handle = await client.submit("two_steps", {"who": "you"})
            assert await handle.result(timeout=5) == "HELLO YOU"


@workflow(name="napping")
async def napping(ctx: Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "awake"


async def test_a_short_sleep_does_not_wait_for_the_timer_poll(kept: Store) -> None:
    async with opened(kept) as client, serving(kept, napping, **SLOW):
        begun = time.monotonic()
        handle = await client.submit("napping", {"seconds": 0.2})
        assert await handle.result(timeout=5) == "awake"
        assert 0.15 < time.monotonic() - begun < 1.5


async def test_a_sleep_that_another_worker_began_is_ended_by_a_poll(kept: Store) -> None:
    async with opened(kept) as client:
        async with serving(kept, napping):
            handle = await client.submit("napping", {"seconds": 0.5})
            await has_status(handle, "sleeping")
        # By its first round the second worker knows when the run is due. (The hint may still go to
        # the first, which was hungry until a moment ago; polling is the floor.)
        async with serving(kept, napping, timer_poll_interval_s=60.0):
            assert await handle.result(timeout=5) == "awake"


async def test_a_delayed_submit_is_claimed_once_it_is_due(kept: Store) -> None:
    async with opened(kept) as client, serving(kept, two_steps, timer_poll_interval_s=0.05):
        begun = time.monotonic()
        handle = await client.submit("two_steps", {"who": "you"}, delay=0.3)
        assert await handle.status() == "queued"
        await handle.result(timeout=5)
        assert time.monotonic() - begun > 0.25


async def test_more_sleepers_than_a_timer_batch_all_wake(kept: Store) -> None:
    async with opened(kept) as client, serving(kept, napping, timer_max_batch=3, **SLOW):
        handles = [await client.submit("napping", {"seconds": 0.1}) for _ in range(20)]
        assert [await h.result(timeout=5) for h in handles] == ["awake"] * 20


def waiting_body(begun: asyncio.Event, seen: list[str]) -> Callable[..., Any]:
    @workflow(name="waiting")
    async def waiting(ctx: Context) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("unwound")
            raise

    return waiting


async def test_cancel_of_a_running_body_is_seen_at_once(kept: Store) -> None:
    begun, seen = asyncio.Event(), list[str]()
    async with opened(kept) as client, serving(kept, waiting_body(begun, seen), **SLOW):
        handle = await client.submit("waiting", {})
        await begun.wait()
        await handle.cancel()
        with pytest.raises(RunCancelledError):
            await handle.result(timeout=5)
        assert seen == ["unwound"]
        assert await handle.status() == "cancelled"


async def test_cancel_of_a_sleeping_run_wakes_and_ends_it(kept: Store) -> None:
    async with opened(kept) as client, serving(kept, napping, **SLOW):
        handle = await client.submit("napping", {"seconds": 3600})
        await has_status(handle, "sleeping")
        await handle.cancel()
        with pytest.raises(RunCancelledError):
            await handle.result(timeout=5)


async def test_cancel_of_a_queued_run_is_honoured_by_who_claims_it(kept: Store) -> None:
    async with opened(kept) as client:
        handle = await client.submit("two_steps", {"who": "you"})
        await handle.cancel()
        async with serving(kept, two_steps):
            with pytest.raises(RunCancelledError):
                await handle.result(timeout=5)
        assert "StepPending" not in [type(event).__name__ for event in await handle.events()]


async def test_never_more_runs_than_slots_and_no_wait_for_a_freed_one(kept: Store) -> None:
    running, most = 0, 0

    @workflow(name="counted")
    async def counted(ctx: Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    options = {"max_concurrent_runs": 3, **SLOW}
    async with opened(kept) as client, serving(kept, counted, two_steps, **options):
        handles = [await client.submit("counted", {}) for _ in range(30)]
        others = [await client.submit("two_steps", {"who": "you"}) for _ in range(10)]
        for handle in handles + others:
            await handle.result(timeout=5)
    assert most == 3


async def test_a_hint_that_meets_a_full_worker_is_passed_to_one_with_room(kept: Store) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @workflow(name="filling")
    async def filling(ctx: Context, wait: bool) -> None:
        if wait:
            begun.set()
            await go_on.wait()

    options = {"max_concurrent_runs": 1, **SLOW}
    async with opened(kept) as client, serving(kept, filling, **options):
        await client.submit("filling", {"wait": True})
        await begun.wait()
        # Both workers are asked in turn: whoever is full must not keep what it is told.
        async with serving(kept, filling, **options):
            for _ in range(4):
                handle = await client.submit("filling", {"wait": False})
                await handle.result(timeout=5)
        go_on.set()


async def test_a_backlog_of_one_workflow_does_not_starve_another() -> None:
    store, order = MemoryStore(SHARDS), list[str]()

    @workflow(name="crowd")
    async def crowd(ctx: Context) -> None:
        await asyncio.sleep(0)
        order.append("crowd")

    @workflow(name="single")
    async def single(ctx: Context) -> None:
        order.append("single")

    async with opened(store) as client:
        await store.register("crowd", serving=True)
        await store.register("single", serving=True)
        handles = [await client.submit("crowd", {}) for _ in range(100)]
        handles.append(await client.submit("single", {}))
        async with serving(store, crowd, single, max_concurrent_runs=1):
            for handle in handles:
                await handle.result(timeout=5)
    assert order.index("single") < 20


async def test_a_body_that_exits_the_interpreter_fails_only_its_run(kept: Store) -> None:
    @workflow(name="exiting")
    async def exiting(ctx: Context) -> None:
        raise SystemExit(3)

    async with opened(kept) as client, serving(kept, exiting, two_steps):
        with pytest.raises(RunFailedError, match="3"):
            await (await client.submit("exiting", {})).result(timeout=5)
        healthy = await client.submit("two_steps", {"who": "you"})
        assert await healthy.result(timeout=5) == "HELLO YOU"


async def test_a_body_that_raises_generator_exit_keeps_no_slot(kept: Store) -> None:
    @workflow(name="closing")
    async def closing(ctx: Context) -> None:
        raise GeneratorExit

    async with opened(kept) as client, serving(kept, closing, two_steps, max_concurrent_runs=1):
        await client.submit("closing", {})
        healthy = await client.submit("two_steps", {"who": "you"})
        assert await healthy.result(timeout=5) == "HELLO YOU"


async def test_wrong_parameters_end_the_run_at_its_first_claim(kept: Store) -> None:
    async with opened(kept) as client, serving(kept, two_steps):
        handle = await client.submit("two_steps", {"whom": 1})
        with pytest.raises(RunFailedError) as failed:
            await handle.result(timeout=5)
        assert failed.value.code == "invalid_params"


async def test_only_what_was_asked_for_is_served() -> None:
    store = MemoryStore(SHARDS)
    async with opened(store) as client, serving(store, napping):
        handle = await client.submit("two_steps", {"who": "you"})
        await (await client.submit("napping", {"seconds": 0})).result(timeout=5)
        assert await handle.status() == "queued"


async def test_steps_are_buffered_in_write_behind(kept: Store) -> None:
    async with opened(kept) as client, serving(kept, two_steps, step_boundary_durability=False):
        handle = await client.submit("two_steps", {"who": "you"})
        assert await handle.result(timeout=5) == "HELLO YOU"
        assert len(await handle.events()) == 6


async def test_a_long_journal_is_paged_in_before_the_body_runs(kept: Store) -> None:
    big = "x" * 60_000

    @workflow(name="long_history")
    async def long_history(ctx: Context) -> Any:
        for number in range(8):
            await ctx.step(f"big {number}", lambda: big)
        await ctx.sleep(0.05)
        return await ctx.step("count", lambda: 8)

    async with opened(kept) as client, serving(kept, long_history):
        handle = await client.submit("long_history", {})
        assert await handle.result(timeout=10) == 8


def test_nothing_to_serve_is_a_sentence() -> None:
    with pytest.raises(ConfigurationError) as refused:
        make_worker(MemoryStore())
    assert refused.value.code == "no_workflows"


def test_a_cloud_key_without_a_connector_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYRULA_CLOUD_API_KEY", "pk_1")
    with pytest.raises(ConfigurationError) as refused:
        WorkflowWorker(store=MemoryStore(), workflows=[napping])
    assert refused.value.code == "cloud_client_missing"
    WorkflowWorker(store=MemoryStore(), workflows=[napping], cloud=False)


async def test_the_workers_own_client_submits() -> None:
    async with serving(MemoryStore(SHARDS), napping) as worker:
        handle = await worker.client.submit("napping", {"seconds": 0})
        assert await handle.result(timeout=5) == "awake"
        await eventually(lambda: worker.runs == 0)
        await worker.client.close()
