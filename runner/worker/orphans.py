"""Recovering runs whose worker is gone.

Owns the orphan scan with its two looks: a lock that missed a renewal is suspected, and requeued
only if it is still unrenewed a third of its lifetime later. The second look is a timer of its own.
Also sweeps the index lines of expired runs. Keeps no state that matters: a scan that failed is
started over.
"""

from __future__ import annotations

import asyncio
import heapq

import structlog

from pyrula.workflows.stores.errors import StoreUnavailable
from pyrula.workflows.worker.core import Core
from pyrula.workflows.worker.loops import Loop
from pyrula.workflows.worker.timers import SHARDS_AT_ONCE, TimerLoop

log = structlog.get_logger()
_Shard = tuple[str, int]


class OrphanLoop(Loop):
    """Scans every shard of every served name each `orphan_scan_interval`."""

    name = "orphans"

    def __init__(self, core: Core, timers: TimerLoop) -> None:
        super().__init__(core)
        self._timers = timers
        self._second_looks: list[tuple[float, _Shard]] = []
        self._next_full = 0.0

    def pause(self) -> float:
        """Until the next second look or the next full scan."""
        first = self._second_looks[0][0] if self._second_looks else self._next_full
        return max(0.0, min(first, self._next_full) - self.core.seams.clock.monotonic())

    async def tick(self) -> None:
        """Look where a second look is due, or everywhere."""
        try:
            await self._look()
        except StoreUnavailable:
            # What this look would have found must not wait for the next round.
            self._next_full = 0.0
            raise

    async def _look(self) -> None:
        now = self.core.seams.clock.monotonic()
        if now >= self._next_full:
            # Jitter keeps the workers of a fleet from scanning in step.
            early = self.core.seams.rng.random() * 0.1
            self._next_full = now + self.core.options.orphan_scan_interval * (1 - early)
            await self._round()
            return
        due: dict[_Shard, None] = {}
        while self._second_looks and self._second_looks[0][0] <= now:
            due[heapq.heappop(self._second_looks)[1]] = None
        await self._scan(list(due))

    async def _round(self) -> None:
        for workflow in self.core.definitions:
            shards = [(workflow, shard) for shard in range(self.core.shard_count)]
            for start in range(0, len(shards), SHARDS_AT_ONCE):
                batch = shards[start : start + SHARDS_AT_ONCE]
                await self._scan(batch)
                await asyncio.gather(*(self.core.store.sweep(w, s) for w, s in batch))

    async def _scan(self, shards: list[_Shard]) -> None:
        answers = await asyncio.gather(
            *(
                self.core.store.scan_orphans(w, s, lock_ttl_ms=self.core.lock_ttl_ms)
                for w, s in shards
            )
        )
        now = self.core.seams.clock.monotonic()
        for (workflow, shard), scanned in zip(shards, answers, strict=True):
            if scanned.look_again_ms is not None:
                again = now + scanned.look_again_ms / 1000
                heapq.heappush(self._second_looks, (again, (workflow, shard)))
            if scanned.requeued:
                log.warning(
                    "orphans_requeued", workflow=workflow, shard=shard, runs=scanned.requeued
                )
                self._timers.look(workflow, shard)
