"""Waking what is due.

Owns the timer loop: every shard of every served name each `timer_poll_interval_s`, at most
`timer_max_batch` runs a tick, and in between exactly the shards of which it knows the next due time
(parked here, or told by the store), so a short sleep doesn't wait for the poll.
"""

from __future__ import annotations

import asyncio
import heapq

from pyrula.workflows.stores.errors import StoreUnavailable
from pyrula.workflows.worker.core import Core
from pyrula.workflows.worker.loops import Loop

_Shard = tuple[str, int]
SHARDS_AT_ONCE = 64
SLACK_S = 0.002  # the estimate of store time may be this early


class TimerLoop(Loop):
    """Makes due runs claimable."""

    name = "timers"

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._expected: list[tuple[int, _Shard]] = []
        self._known: dict[_Shard, int] = {}
        self._next_full = 0.0

    def expect(self, workflow: str, shard: int, due_ms: int) -> None:
        """Something in the shard is due at store time `due_ms`."""
        key = (workflow, shard)
        known = self._known.get(key)
        if known is not None and known <= due_ms:
            return
        self._known[key] = due_ms
        heapq.heappush(self._expected, (due_ms, key))
        if self._expected[0][0] == due_ms:
            self.wake()

    def look(self, workflow: str, shard: int) -> None:
        """Ask the shard what is due next (a requeue may have been delayed there)."""
        self.expect(workflow, shard, self.core.store_clock.now_ms())

    def pause(self) -> float:
        """Until the next known due time, at most until the next full round."""
        until_full = self._next_full - self.core.seams.clock.monotonic()
        if not self._expected:
            return max(0.0, until_full)
        until_due = (self._expected[0][0] - self.core.store_clock.now_ms()) / 1000 + SLACK_S
        return max(0.0, min(until_full, until_due))

    async def tick(self) -> None:
        """Fire what is due: everywhere when a round is due, else where something is expected."""
        now = self.core.seams.clock.monotonic()
        if now >= self._next_full:
            shards = [(w, s) for w in self.core.definitions for s in range(self.core.shard_count)]
            self._next_full = now + self.core.options.timer_poll_interval_s
        else:
            shards = self._due_shards()
        try:
            await self._fire(shards)
        except StoreUnavailable:
            self._next_full = 0.0  # who was due is not remembered: look everywhere again
            raise

    def _due_shards(self) -> list[_Shard]:
        now_ms = self.core.store_clock.now_ms()
        shards: dict[_Shard, None] = {}
        while self._expected and self._expected[0][0] <= now_ms:
            shards[heapq.heappop(self._expected)[1]] = None
        for shard in shards:
            self._known.pop(shard, None)
        return list(shards)

    async def _fire(self, shards: list[_Shard]) -> None:
        left = self.core.options.timer_max_batch
        while shards and left > 0:
            batch = shards[: min(SHARDS_AT_ONCE, left)]
            shards = shards[len(batch) :]
            left -= await self._fire_batch(batch, left // len(batch))
        for workflow, shard in shards:
            self.look(workflow, shard)

    async def _fire_batch(self, batch: list[_Shard], limit: int) -> int:
        fired = await asyncio.gather(
            *(self.core.store.fire_timers(w, s, limit=limit) for w, s in batch)
        )
        for (workflow, shard), answer in zip(batch, fired, strict=True):
            if answer.next_due_ms is not None:
                self.core.store_clock.heard(answer.now_ms)
                self.expect(workflow, shard, max(answer.next_due_ms, answer.now_ms + 1))
        return sum(answer.count for answer in fired)
