"""The public types as their users see them: checked by mypy and basedpyright, never run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from pyrula.workflows import (
    Context,
    MemoryStore,
    PyrulaError,
    RemoteError,
    ReplayState,
    Retry,
    RunFailedError,
    RunHandle,
    ValkeyStore,
    WorkerOptions,
    WorkflowClient,
    WorkflowWorker,
    reconstruct_state,
    replay_all_events,
    step,
    workflow,
)


@step(name="charge", timeout=timedelta(seconds=30), retry=Retry(attempts=3))
async def charge(order_id: str) -> int:
    return len(order_id)


@step
def receipt(order_id: str) -> bytes:
    return order_id.encode()


@workflow
async def bare(ctx: Context) -> None:
    await ctx.sleep(timedelta(hours=1))


@workflow(name="fulfill_order", timeout=60)
async def fulfill(ctx: Context, order_id: str) -> int:
    charged: int = await ctx.step(charge, order_id, timeout=5)
    named: str = await ctx.step("receipt", receipt, kwargs={"order_id": order_id})
    both = await ctx.gather(ctx.step(charge, order_id), ctx.step(receipt, order_id))
    assert_type(both, list[Any])
    assert_type(ctx.now(), datetime)
    assert_type(ctx.random(), float)
    assert_type(ctx.uuid(), UUID)
    assert_type(ctx.run_id, str)
    try:
        await ctx.sleep(5)
    except RemoteError as error:
        assert_type(error.type_name, str)
    return charged + len(named)


# A decorator leaves the type of what it decorates.
as_step: Callable[[str], Coroutine[Any, Any, int]] = charge
as_workflow: Callable[[Context, str], Coroutine[Any, Any, int]] = fulfill


async def use() -> None:
    store = ValkeyStore("redis://localhost:6379", shard_count=64, namespace="staging")
    worker = WorkflowWorker(
        store=store, workflows=[fulfill], options=WorkerOptions(max_concurrent_runs=100)
    )
    assert_type(worker.client, WorkflowClient)
    client = WorkflowClient(MemoryStore())
    handle = await client.submit("fulfill_order", {"order_id": "o1"}, owner="tenant-42")
    assert_type(handle, RunHandle)
    try:
        assert_type(await handle.result(timeout=5), Any)
    except RunFailedError as error:
        assert_type(error.code, str)
        assert_type(error.detail, dict[str, Any])
    events = await replay_all_events(store, "fulfill_order", handle.run_id)
    assert_type(reconstruct_state(events), ReplayState)


def handle_all(error: PyrulaError) -> str:
    return error.code
