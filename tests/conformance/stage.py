"""What the conformance suite plays on: a store under test and the verbs its claims are told in.

Owns the differences between stores (how one is made, how time passes); the tests know none.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

from pyrula.workflows.shards.hashing import shard_of
from pyrula.workflows.stores.base import (
    Claimed,
    ClaimReply,
    ClaimRequest,
    Hint,
    Lock,
    RenewReply,
    RunInfo,
    RunRef,
    Store,
    Submission,
)
from pyrula.workflows.stores.events import (
    ErrorRecord,
    Raw,
    RunComplete,
    RunInit,
    StepDone,
    StepError,
    StepPending,
    pack,
)
from pyrula.workflows.stores.memory import MemoryServer, MemoryStore
from pyrula.workflows.stores.memory.records import Shard
from pyrula.workflows.stores.seams import Rng, Seams, SystemIds
from tests.support.clock import ManualClock

WORKFLOW = "orders"
MEMBER = "member-1"
LONG_MS = 60_000

INIT = pack(RunInit(t=1, name=WORKFLOW, params=Raw(b"{}")))
COMPLETE = pack(RunComplete(t=9))


def pending(path: str) -> bytes:
    return pack(StepPending(t=2, p=path, n="charge", h="h"))


def done(path: str) -> bytes:
    return pack(StepDone(t=3, p=path))


def failed(path: str, *, final: bool) -> bytes:
    error = ErrorRecord(type="ValueError", message="no")
    return pack(StepError(t=3, final=final, p=path, error=error))


class Backend:
    """One kind of store: how stores over the same data are made and how time passes there."""

    def make(
        self,
        *,
        shard_count: int = 1,
        rng: Rng | None = None,
        completed_ttl: float = 3_600,
        maxlen: int = 100_000,
    ) -> Store:
        raise NotImplementedError

    async def elapse(self, ms: int) -> None:
        raise NotImplementedError


class MemoryBackend(Backend):
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.server = MemoryServer(clock=self.clock)
        self.shard = Shard(workflow=WORKFLOW, number=0)
        self.server.shards[WORKFLOW, 0] = self.shard

    def make(
        self,
        *,
        shard_count: int = 1,
        rng: Rng | None = None,
        completed_ttl: float = 3_600,
        maxlen: int = 100_000,
    ) -> Store:
        return MemoryStore(
            shard_count, rng=rng, completed_ttl=completed_ttl, maxlen=maxlen, server=self.server
        )

    async def elapse(self, ms: int) -> None:
        self.clock.advance(ms / 1_000)
        await asyncio.sleep(0)


class ValkeyBackend(Backend):
    def __init__(self, url: str, namespace: str) -> None:
        self._url = url
        self._namespace = namespace

    def make(
        self,
        *,
        shard_count: int = 1,
        rng: Rng | None = None,
        completed_ttl: float = 3_600,
        maxlen: int = 100_000,
    ) -> Store:
        from pyrula.workflows.stores.valkey.store import ValkeyStore

        return ValkeyStore(
            self._url,
            namespace=self._namespace,
            shard_count=shard_count,
            completed_ttl=completed_ttl,
            maxlen=maxlen,
            seams=Seams(rng=rng) if rng else Seams(),
        )

    async def elapse(self, ms: int) -> None:
        # The server's clock can't be moved, so its time has to pass.
        await asyncio.sleep(ms / 1_000)


class Stage:
    """An opened store with `WORKFLOW` registered in one shard, and verbs with short defaults."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.store = backend.make()
        self._claims: defaultdict[tuple[str, str, int], int] = defaultdict(int)
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._opened(self.store)
        await self.store.register(WORKFLOW, serving=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def another(self, **options: Any) -> Store:
        """A second store over the same data, as another process would have."""
        return await self._opened(self.backend.make(**options))

    async def _opened(self, store: Store) -> Store:
        self._open.push_async_callback(store.close)
        await store.open()
        return store

    def ref(self, run_id: str, workflow: str = WORKFLOW, shard_count: int = 1) -> RunRef:
        return RunRef(workflow, run_id, shard_of(run_id, shard_count))

    async def submit(
        self, run_id: str, *, digest: str = "d", owner: str | None = None, delay_ms: int = 0
    ) -> RunRef:
        ref = self.ref(run_id)
        submission = Submission(ref=ref, init=INIT, digest=digest, owner=owner, delay_ms=delay_ms)
        assert await self.store.submit(submission)
        return ref

    def request(
        self,
        *,
        member: str = MEMBER,
        limit: int = 1,
        lock_ttl_ms: int = LONG_MS,
        hungry_ms: int = 3_000,
        byte_budget: int = 256 * 1024,
        workflow: str = WORKFLOW,
        shard: int = 0,
    ) -> ClaimRequest:
        """The member's next claim of the shard."""
        self._claims[member, workflow, shard] += 1
        return ClaimRequest(
            workflow=workflow,
            shard=shard,
            incarnation=member,
            n=self._claims[member, workflow, shard],
            nonce=SystemIds().token(),
            limit=limit,
            lock_ttl_ms=lock_ttl_ms,
            hungry_ms=hungry_ms,
            byte_budget=byte_budget,
        )

    async def claim(self, **request: Any) -> list[Claimed]:
        return (await self.claim_reply(**request)).runs

    async def claim_reply(self, **request: Any) -> ClaimReply:
        return await self.store.claim(self.request(**request))

    async def own(self, run_id: str, **request: Any) -> Lock:
        """Submit a run and claim it."""
        await self.submit(run_id)
        return await self.reclaim(run_id, **request)

    async def reclaim(self, run_id: str, **request: Any) -> Lock:
        """Claim the only claimable run."""
        (claimed,) = await self.claim(**request)
        assert claimed.lock.ref.run_id == run_id
        return claimed.lock

    async def claimable(self) -> list[str]:
        """Ids in the order they would be claimed in; a stranger takes them all to find out."""
        return [run.lock.ref.run_id for run in await self.claim(member="stranger", limit=100)]

    def claimable_now(self, run_id: str) -> Callable[[], Awaitable[bool]]:
        """Asks, firing timers, whether the run can be claimed."""

        async def ask() -> bool:
            await self.fire()
            info = await self.info(run_id)
            return info.status == "queued" and info.due_ms is None

        return ask

    async def journal(self, run_id: str) -> list[bytes]:
        return (await self.store.read_journal(self.ref(run_id), 1)).events

    async def info(self, run_id: str) -> RunInfo:
        return await self.store.info(self.ref(run_id))

    async def renew(self, *locks: Lock, ttl_ms: int = LONG_MS) -> list[RenewReply]:
        renewer = self.store.renewer()
        try:
            return await asyncio.to_thread(renewer.renew, locks, ttl_ms)
        finally:
            renewer.close()

    async def scan(self, lock_ttl_ms: int) -> tuple[int, int]:
        """Look at the locks once: how many were suspected and how many requeued."""
        scanned = await self.store.scan_orphans(WORKFLOW, 0, lock_ttl_ms=lock_ttl_ms)
        return scanned.suspected, scanned.requeued

    async def fire(self, limit: int = 100) -> int:
        return (await self.store.fire_timers(WORKFLOW, 0, limit=limit)).count

    async def settle(
        self, member: str = MEMBER, *, lost: Sequence[str] | None = None, limit: int = 1_000
    ) -> tuple[int, bool]:
        settled = await self.store.settle_death(
            WORKFLOW, 0, incarnation=member, cause="killed", lost=lost, limit=limit
        )
        return settled.requeued, settled.more

    async def now_ms(self) -> int:
        """Store time."""
        return (await self.store.fire_timers(WORKFLOW, 0, limit=0)).now_ms

    async def elapse(self, ms: int) -> None:
        """Let store time pass."""
        await self.backend.elapse(ms)

    async def until(self, holds: Callable[[], Awaitable[Any]], within: float = 5.0) -> None:
        """Let store time pass in small bits until `holds`."""
        end = time.monotonic() + within
        while not await holds():
            assert time.monotonic() < end, "did not come to hold in time"
            await self.elapse(10)

    async def hear(self, member: str) -> Hearing:
        """Listen to a member's hints."""
        hearing = Hearing()
        listener = await self.store.listen(member, hearing.hints.put_nowait, lambda: None)
        self._open.push_async_callback(listener.close)
        return hearing


class Hearing:
    """The hints that arrived for a member."""

    def __init__(self) -> None:
        self.hints: asyncio.Queue[Hint] = asyncio.Queue()

    async def next(self) -> Hint:
        async with asyncio.timeout(5):
            return await self.hints.get()

    @property
    def silent(self) -> bool:
        return self.hints.empty()
