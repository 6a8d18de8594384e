"""Workers in the process of a test, quick enough to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pyrula.workflows.stores.base import Store
from pyrula.workflows.worker.options import WorkerOptions
from pyrula.workflows.worker.worker import WorkflowWorker

# Polling is slow on purpose: what a test waits for has to be woken. No test waits for a drain.
QUICK: dict[str, Any] = {"shutdown_grace": 2.0, "cancel_timeout": 1.0}
SHARDS = 4


def make_worker(store: Store, *bodies: Callable[..., Any], **options: Any) -> WorkflowWorker:
    """A worker that serves these bodies."""
    return WorkflowWorker(store=store, workflows=bodies, options=WorkerOptions(**(QUICK | options)))


@asynccontextmanager
async def serving(
    store: Store, *bodies: Callable[..., Any], **options: Any
) -> AsyncGenerator[WorkflowWorker]:
    """A running worker; drained at the end, when what made it fail is raised."""
    worker = make_worker(store, *bodies, **options)
    ready = asyncio.Event()

    async def on_ready() -> None:
        ready.set()

    running = asyncio.create_task(worker.run(on_ready))
    starting = asyncio.create_task(ready.wait())
    await asyncio.wait([running, starting], return_when=asyncio.FIRST_COMPLETED)
    starting.cancel()
    try:
        yield worker
    finally:
        worker.stop()
        await running
