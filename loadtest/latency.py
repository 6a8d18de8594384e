"""W2: from submit to the result in the client's hands, one run at a time, one worker."""

from __future__ import annotations

import time
from statistics import quantiles

from loadtest.stage import stage

WARM, RUNS = 100, 1_000


async def latencies_ms() -> tuple[float, float]:
    """p50 and p99 of one measurement on a fresh server."""
    async with stage(procs=1) as on:
        took: list[float] = []
        for _ in range(WARM + RUNS):
            began = time.perf_counter()
            run = await on.client.submit("bench_one")
            await run.result(timeout=10)
            took.append((time.perf_counter() - began) * 1_000)
    cuts = quantiles(took[WARM:], n=100)
    return cuts[49], cuts[98]
