"""Taking runs from shards.

Owns one claim loop per workflow name. Hinted shards come first; each poll tick adds a tenth of the
own shards in rotation, so polling is the floor and a lost hint costs time only. Reserves slots
before it asks. A claim whose answer got lost keeps its slots and is asked again with the same
counter, so nothing it took is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pyrula.workflows.stores.base import ClaimReply, ClaimRequest
from pyrula.workflows.worker.core import Core
from pyrula.workflows.worker.loops import Loop

SHARDS_AT_ONCE = 8
ROTATION = 10  # poll ticks until every own shard was asked


class OwnShards:
    """Which shards this worker asks first: all of them, until there are leases."""

    def __init__(self, shard_count: int) -> None:
        self._shards = list(range(shard_count))
        self._next = 0

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
        self, core: Core, workflow: str, start: Callable[[ClaimReply, float], None]
    ) -> None:
        super().__init__(core)
        self.name = f"claim:{workflow}"
        self._workflow = workflow
        self._start = start
        self._own = OwnShards(core.shard_count)
        # An ordered set: shards with something to claim, oldest hint first. A hint that comes while
        # its shard is being asked stays in here, so the shard is asked once more.
        self._hinted = dict.fromkeys(self._own.all())
        self._counters: dict[int, int] = {}
        # By shard: the request, and when it was first sent (monotonic).
        self._unanswered: dict[int, tuple[ClaimRequest, float]] = {}
        self._answered = asyncio.Event()
        self._answered.set()
        self._told: set[int] = set()
        self._next_poll = 0.0
        core.slots.on_free(self._slot_freed)

    def hint(self, shard: int) -> None:
        """The shard has something claimable."""
        self._told.add(shard)
        self._hinted.setdefault(shard)
        self.wake()

    def hint_all(self) -> None:
        """Hints may have been missed: ask every own shard again."""
        for shard in self._own.all():
            self._hinted.setdefault(shard)
        self.wake()

    def pause(self) -> float:
        """Until the next poll; at once while hinted shards and free slots remain."""
        if self._hinted and self.core.slots.free:
            return 0.0
        return max(0.0, self._next_poll - self.core.seams.clock.monotonic())

    async def tick(self) -> None:
        """Ask the hinted shards and, when it is time, those whose turn it is."""
        told, self._told = self._told, set()
        if told and (self.core.draining or not self.core.slots.free):
            await self._pass_on(told)
        if self.core.draining:
            await self.wait(self.core.options.claim_poll_interval)
            return
        now = self.core.seams.clock.monotonic()
        if now >= self._next_poll:
            self._next_poll = now + self.core.options.claim_poll_interval
            for shard in self._own.turn():
                self._hinted.setdefault(shard)
        requests = [*(asked for asked, _ in self._unanswered.values()), *self._new_requests()]
        self._answered.clear()
        try:
            await self._ask_all(requests)
        finally:
            self._answered.set()

    async def quiet(self) -> None:
        """Return when no claim is on its way, so that none brings a run after the drain."""
        await self._answered.wait()

    async def _ask_all(self, requests: list[ClaimRequest]) -> None:
        if len(requests) == 1:  # the usual case under load: spare the task
            await self._ask(requests[0])
            return
        results = await asyncio.gather(*map(self._ask, requests), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _pass_on(self, shards: set[int]) -> None:
        """Tell a member that may have room: a hint came to this one alone, and it has none."""
        await asyncio.gather(*(self.core.store.pass_hint(self._workflow, s) for s in shards))

    def _slot_freed(self) -> None:
        if self._hinted:
            self.wake()

    def _new_requests(self) -> list[ClaimRequest]:
        """Requests to the oldest hinted shards, which share the free slots and reserve them."""
        most = min(SHARDS_AT_ONCE - len(self._unanswered), self.core.slots.free)
        shards = [shard for shard in self._hinted if shard not in self._unanswered][: max(0, most)]
        share = self.core.slots.free // len(shards) if shards else 0
        return [self._request(shard, self.core.slots.reserve(share)) for shard in shards]

    def _request(self, shard: int, limit: int) -> ClaimRequest:
        self._hinted.pop(shard, None)
        n = self._counters[shard] = self._counters.get(shard, 0) + 1
        request = ClaimRequest(
            workflow=self._workflow,
            shard=shard,
            incarnation=self.core.incarnation,
            n=n,
            nonce=self.core.seams.ids.token(),
            limit=limit,
            lock_ttl_ms=self.core.lock_ttl_ms,
            # Three rounds of polling: who still lives has asked this shard again by then.
            hungry_ms=int(3_000 * ROTATION * self.core.options.claim_poll_interval),
        )
        self._unanswered[shard] = (request, self.core.seams.clock.monotonic())
        return request

    async def _ask(self, request: ClaimRequest) -> None:
        reply = await self.core.store.claim(request)
        _, asked_at = self._unanswered.pop(request.shard)
        self.core.store_clock.heard(reply.now_ms)
        taken = len(reply.runs)
        if taken == request.limit:
            self._hinted.setdefault(request.shard)
        if taken:
            self._start(reply, asked_at)
        self.core.slots.release(request.limit - taken)
