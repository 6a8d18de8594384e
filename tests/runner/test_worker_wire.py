"""What a worker's runs cost on the wire, and that no lost reply shows in a run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pyrula.workflows.client import WorkflowClient
from pyrula.workflows.engine.context import Context
from pyrula.workflows.engine.registry import workflow
from pyrula.workflows.stores.events import StepDone
from pyrula.workflows.stores.valkey.store import ValkeyStore
from tests.support.proxy import Exchange, Fault, FaultProxy, When
from tests.support.until import eventually
from tests.support.valkey import ValkeyServer
from tests.support.workers import SHARDS, serving

STEPS = 10


@workflow(name="ten_steps")
async def ten_steps(ctx: Context) -> int:
    for number in range(STEPS):
        await ctx.step(f"s{number}", asyncio.sleep, 0)
    return STEPS


@asynccontextmanager
async def proxied(
    server: ValkeyServer, namespace: str
) -> AsyncGenerator[tuple[FaultProxy, ValkeyStore, WorkflowClient]]:
    """The worker's store behind a proxy, and a client that goes straight to the server."""
    async with FaultProxy(server.socket) as proxy:
        store = ValkeyStore(proxy.url, namespace=namespace, shard_count=SHARDS)
        direct = ValkeyStore(server.url, namespace=namespace, shard_count=SHARDS)
        await direct.open()
        client = WorkflowClient(direct)
        try:
            yield proxy, store, client
        finally:
            await client.close()
            await direct.close()
            await store.close()


def operation(exchange: Exchange) -> str:
    """The transition that a request asks for."""
    words = exchange.request
    if words[0] not in {b"EVALSHA", b"EVAL"}:
        return ""
    return words[3 + int(words[2])].decode()


def concerns(exchange: Exchange, run_id: str) -> bool:
    """Whether the run is named in a request."""
    return any(run_id.encode() in word for word in exchange.request)


async def test_a_step_costs_one_awaited_round_trip(valkey: ValkeyServer, namespace: str) -> None:
    async with (
        proxied(valkey, namespace) as (proxy, store, client),
        serving(store, ten_steps),
    ):
        handle = await client.submit("ten_steps", {})
        assert await handle.result(timeout=10) == STEPS
        asked = Counter(operation(e) for e in proxy.log if concerns(e, handle.run_id))
    # A post that nobody waits for and an append that is awaited, for each step.
    assert asked == {"append_events": 2 * STEPS, "finish_run": 1}


@pytest.mark.bound(60)
@pytest.mark.parametrize("fault", [Fault.CUT, Fault.RESET, Fault.TRUNCATE])
async def test_replies_lost_under_load_show_in_no_run(
    fault: Fault, valkey: ValkeyServer, namespace: str
) -> None:
    async with proxied(valkey, namespace) as (proxy, store, client):
        options: dict[str, Any] = {"lock_ttl": 1.0, "orphan_scan_interval": 0.2}
        async with serving(store, ten_steps, **options) as worker:
            handles = [await client.submit("ten_steps", {}) for _ in range(30)]
            kinds = ("claim_runs", "append_events", "finish_run")
            for kind in kinds:
                lost = proxy.lose_reply(_is(kind), fault=fault, times=1)
                handles += [await client.submit("ten_steps", {}) for _ in range(10)]
                async with asyncio.timeout(20):
                    await lost.hit.wait()
            for handle in handles:
                assert await handle.result(timeout=20) == STEPS
                events = await handle.events()
                assert sum(isinstance(event, StepDone) for event in events) == STEPS
            await eventually(lambda: worker.core.slots.free == worker.core.slots.total)


def _is(kind: str) -> When:
    def matches(exchange: Exchange) -> bool:
        return operation(exchange) == kind

    return matches
