"""Taking runs from shards.

Owns one claim loop per workflow name. Hinted shards come first; each poll tick adds a tenth of the
own shards in rotation, so polling is the floor and a lost hint costs time only. Reserves slots before
it asks. A claim whose answer got lost is asked again with the same counter, so nothing it took is
forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pyrula.workflows.stores.base import ClaimReply, ClaimRequest
from pyrula.workflows.stores.errors import StoreUnavailable
from pyrula.workflows.worker.core import Core
from pyrula.workflows.worker.loops import Loop

SHARDS_AT_ONCE = 8
ROTATION = 10  # poll ticks until every own shard was asked


class OwnShards:
    """Which shards this worker asks first: all of them, until there are leases."""

    def __init__(self, shard_count: int) -> None:
        self._shards = list(range(shard_count))
        self._next = 0

    def __len__(self) -> int:
        return len(self._shards)

    def all(self) -> list[int]:
        """Every own shard."""
        return list(self._shards)

    def turn(self) -> list[int]:
        """The shards whose turn it is at this poll tick."""
        count = -(-len(self._shards) // ROTATION)
        turn = [self._shards[(self._next + i) % len(self._shards)] for i in range(count)]
        self._next = (self._next + count) % len(self._shards)
        return turn


class ClaimLoop(Loop):
    """Claims runs of one workflow name and hands them to `start`."""

    def __init__(
        self, core: Core, workflow: str, start: Callable[[ClaimReply], None]
    ) -> None:
        super().__init__(core)
        self.name = f"claim:{workflow}"
        self._workflow = workflow
        self._start = start
        self._own = OwnShards(core.shard_count)
        # An ordered set: shards with something to claim, oldest hint first.
        self._hinted = dict.fromkeys(self._own.all())
        self._asking: set[int] = set()
        self._dirty: set[int] = set()
        self._counters: dict[int, int] = {}
        self._unanswered: dict[int, ClaimRequest] = {}
        self._next_poll = 0.0
        core.slots.on_free(self._slot_freed)

    def hint(self, shard: int) -> None:
        """The shard has something claimable."""
        if shard in self._asking:
            self._dirty.add(shard)
        self._hinted[shard] = None
        self.wake()

    def hint_all(self) -> None:
        """Hints may have been missed: ask every own shard again."""
        for shard in self._own.all():
            self.hint(shard)

    def pause(self) -> float:
        """Until the next poll; at once while hinted shards and free slots remain."""
        if self._hinted and self.core.slots.free:
            return 0.0
        return max(0.0, self._next_poll - self.core.seams.clock.monotonic())

    async def tick(self) -> None:
        """Ask the hinted shards and, when it is time, those whose turn it is."""
        if self.core.draining:
            await self.wait(self.core.options.claim_poll_interval)
            return
        now = self.core.seams.clock.monotonic()
        if now >= self._next_poll:
            self._next_poll = now + self.core.options.claim_poll_interval
            for shard in self._own.turn():
                self._hinted.setdefault(shard)
        requests = self._requests()
        if requests:
            await self._ask(requests)

    def _slot_freed(self) -> None:
        if self._hinted:
            self.wake()

    def _requests(self) -> list[ClaimRequest]:
        free = self.core.slots.free
        shards = list(self._hinted)[: min(SHARDS_AT_ONCE, free)]
        requests = [self._request(shard, free // len(shards)) for shard in shards]
        while requests and sum(r.limit for r in requests) > free:
            requests.pop()  # a repeated request may want more than its share
        return requests

    def _request(self, shard: int, limit: int) -> ClaimRequest:
        unanswered = self._unanswered.get(shard)
        if unanswered is not None:
            return unanswered
        return ClaimRequest(
            workflow=self._workflow,
            shard=shard,
            incarnation=self.core.incarnation,
            n=self._counters.get(shard, 0) + 1,
            nonce=self.core.seams.ids.token(),
            limit=limit,
            lock_ttl_ms=self.core.lock_ttl_ms,
            hungry_ms=int(3_000 * ROTATION * self.core.options.claim_poll_interval),
        )

    async def _ask(self, requests: list[ClaimRequest]) -> None:
        for request in requests:
            self.core.slots.reserve(request.limit)
            self._hinted.pop(request.shard, None)
            self._asking.add(request.shard)
            self._counters[request.shard] = request.n
        if len(requests) == 1:  # the usual case under load: spare the task
            await self._ask_one(requests[0])
            return
        results = await asyncio.gather(*map(self._ask_one, requests), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _ask_one(self, request: ClaimRequest) -> None:
        shard, taken = request.shard, 0
        self._unanswered[shard] = request
        try:
            reply = await self.core.store.claim(request)
            del self._unanswered[shard]
            taken = len(reply.runs)
            self.core.store_clock.heard(reply.now_ms)
            if taken == request.limit or shard in self._dirty:
                self._hinted[shard] = None
            if taken:
                self._start(reply)
        except StoreUnavailable:
            self._hinted[shard] = None
            raise
        finally:
            self._asking.discard(shard)
            self._dirty.discard(shard)
            self.core.slots.release(request.limit - taken)
