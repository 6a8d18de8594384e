"""W1: how many runs and steps a second, 50 runs in flight in each worker process.

The workers stand still while the queue is filled, so that what is measured is the way from the
first claim to the last finish and nothing else.
"""

from __future__ import annotations

import time

from loadtest.stage import Stage, stage, submit_many
from tests.support.until import eventually_async

WARM = 200
RUNS = {"bench_one": 12_000, "bench_ten": 4_000}


async def runs_per_second(name: str, procs: int) -> float:
    """One measurement on a fresh server."""
    count = RUNS[name]
    async with stage(procs=procs) as on:
        # The first runs pay for imports and code paths; they aren't measured.
        await submit_many(on.client, name, WARM)
        await on.counted(WARM)
        on.pause()
        await submit_many(on.client, name, count)
        began = time.perf_counter()
        on.resume()
        await on.counted(WARM + count)
        took = time.perf_counter() - began
        await eventually_async(lambda: _all_completed(on, name, WARM + count), 10, "all completed")
    return count / took


async def _all_completed(on: Stage, name: str, count: int) -> bool:
    """The bodies have counted; what the store says must agree."""
    completed = await on.store.list_runs(name, status="completed", owner=None, limit=count)
    return len(completed) == count
