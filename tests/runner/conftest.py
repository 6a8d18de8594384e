"""Stores for the tests of this folder: each test runs on every kind."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from pyrula.workflows.stores.base import Store
from pyrula.workflows.stores.memory.server import MemoryServer
from pyrula.workflows.stores.memory.store import MemoryStore
from pyrula.workflows.stores.valkey.store import ValkeyStore

StoreFactory = Callable[..., AbstractAsyncContextManager[Store]]


@pytest.fixture(params=["memory", "valkey"])
def make_store(request: pytest.FixtureRequest, namespace: str) -> StoreFactory:
    """Make stores that see the same runs: `async with make_store(shard_count=8) as store`."""
    server = MemoryServer()
    kind: str = request.param
    url = request.getfixturevalue("valkey_url") if kind == "valkey" else ""

    @asynccontextmanager
    async def make(shard_count: int = 4) -> AsyncGenerator[Store]:
        store: Store
        if kind == "memory":
            store = MemoryStore(shard_count, server=server)
        else:
            store = ValkeyStore(url, namespace=namespace, shard_count=shard_count)
        try:
            yield store
        finally:
            await store.close()

    return make
