"""`MemoryStore`: the `Store` protocol over a `MemoryServer` in the same process.

Owns the calling side only: it finds the shard, runs the transition and answers a turn of the loop
later, as a store over a wire would, so that a caller cancelled in between has lost a reply and not
a request. Refuses to know what a transition does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from pyrula.workflows.stores import base
from pyrula.workflows.stores.base import Lock, RunRef
from pyrula.workflows.stores.errors import StoreError
from pyrula.workflows.stores.memory import owning, recovering, runs
from pyrula.workflows.stores.memory.server import Ear, MemoryServer
from pyrula.workflows.stores.seams import Clock, Rng, Seams

T = TypeVar("T")


class MemoryStore:
    """A store for tests and for runs that need not outlive the process.

    Stores given the same `server` see the same runs, as several processes would; without one,
    `clock` (whose `wall()` is store time) makes a new one. `rng` gives the jitter of backoffs,
    `completed_ttl` (seconds) is how long a finished run can be read, `maxlen` how many events a
    journal keeps.

    >>> MemoryStore(shard_count=4).shard_count
    4
    """

    def __init__(
        self,
        shard_count: int = 64,
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        completed_ttl: float = 7 * 86_400,
        maxlen: int = 100_000,
        server: MemoryServer | None = None,
    ) -> None:
        self.server = server or MemoryServer(clock=clock)
        self._shard_count = shard_count
        self._jitter = (rng or Seams().rng).random
        self._completed_ttl_ms = int(completed_ttl * 1_000)
        self._maxlen = maxlen

    @property
    def shard_count(self) -> int:
        """The configured number of shards per workflow name."""
        return self._shard_count

    @property
    def maxlen(self) -> int:
        """How many events a journal keeps; the oldest beyond are trimmed."""
        return self._maxlen

    @property
    def contacts(self) -> int:
        """How often contact was made."""
        return self.server.contacts

    @property
    def now_ms(self) -> int:
        """Store time."""
        return self.server.now_ms()

    async def open(self) -> None:
        """Nothing to connect to; raises `StoreUnavailable` while the server is down."""
        await self.ping()

    async def close(self) -> None:
        """There is nothing to let go of; safe to call twice."""

    async def ping(self) -> None:
        """Return if the store answers now."""
        self.server.check_up()
        await _answer(None)

    async def next_contact(self, seen: int) -> int:
        """Return `contacts` as soon as it is greater than `seen`."""
        return await self.server.next_contact(seen)

    async def register(self, workflow: str, *, serving: bool) -> base.Registration:
        """Record the name with this store's shard_count, or adopt what is recorded."""
        return await _answer(self.server.register(workflow, self._shard_count, serving=serving))

    async def workflows(self) -> list[str]:
        """All registered names, sorted."""
        self.server.check_up()
        return await _answer(sorted(self.server.registry))

    async def submit(self, submission: base.Submission) -> bool:
        """Accept the run once."""
        ref = submission.ref
        with self.server.transition(ref.workflow, ref.shard) as (shard, now):
            self.server.check_registered(ref.workflow, ref.shard)
            created = runs.submit(shard, submission, now)
        return await _answer(created)

    async def reserve_key(self, key_id: str, reservation: base.Reservation) -> base.Reservation:
        """Tie an idempotency key to a run id, once."""
        return await _answer(self.server.reserve_key(key_id, reservation))

    async def claim(self, request: base.ClaimRequest) -> base.ClaimReply:
        """Take runs in FIFO order."""
        with self.server.transition(request.workflow, request.shard) as (shard, now):
            self.server.check_registered(request.workflow, request.shard)
            reply = owning.claim(shard, request, now)
        return await _answer(reply)

    def post(self, lock: Lock, first_seq: int, events: Sequence[bytes]) -> base.Posted:
        """Append at once; the answer may be left unawaited."""
        try:
            return _Posted(self._append(lock, first_seq, events))
        except StoreError as refusal:
            return _Posted(refusal)

    async def append(self, lock: Lock, first_seq: int, events: Sequence[bytes]) -> base.AppendReply:
        """Write events, skipping those already there."""
        return await _answer(self._append(lock, first_seq, events))

    def _append(self, lock: Lock, first_seq: int, events: Sequence[bytes]) -> base.AppendReply:
        with self.server.transition(lock.ref.workflow, lock.ref.shard) as (shard, _):
            return owning.append(shard, lock, first_seq, events, maxlen=self._maxlen)

    async def read_journal(
        self, ref: RunRef, first_seq: int, *, max_events: int = 1_000, max_bytes: int = 8 << 20
    ) -> base.JournalPage:
        """Events from `first_seq` on."""
        with self.server.transition(ref.workflow, ref.shard) as (shard, now):
            page = runs.read_journal(
                shard, ref, first_seq, max_events=max_events, max_bytes=max_bytes, now=now
            )
        return await _answer(page)

    async def park(
        self, lock: Lock, first_seq: int, events: Sequence[bytes], *, due_ms: int | None
    ) -> base.ParkReply:
        """Append and give the run up until something happens."""
        with self.server.transition(lock.ref.workflow, lock.ref.shard) as (shard, now):
            reply = owning.park(
                shard, lock, first_seq, events, due_ms=due_ms, maxlen=self._maxlen, now=now
            )
        return await _answer(reply)

    async def requeue(
        self, lock: Lock, first_seq: int, events: Sequence[bytes], *, backoff: bool
    ) -> bool:
        """Append and give the run up, in its old place in the queue."""
        with self.server.transition(lock.ref.workflow, lock.ref.shard) as (shard, now):
            done = owning.requeue(
                shard,
                lock,
                first_seq,
                events,
                backoff=backoff,
                jitter=self._jitter(),
                maxlen=self._maxlen,
                now=now,
            )
        return await _answer(done)

    async def finish(
        self, lock: Lock, first_seq: int, events: Sequence[bytes], *, status: base.Status
    ) -> None:
        """Append the terminal event and end the run."""
        with self.server.transition(lock.ref.workflow, lock.ref.shard) as (shard, now):
            owning.finish(
                shard,
                lock,
                first_seq,
                events,
                status=status,
                completed_ttl_ms=self._completed_ttl_ms,
                maxlen=self._maxlen,
                now=now,
            )
        await _answer(None)

    def renewer(self) -> MemoryRenewer:
        """A blocking renewer for the caller's thread."""
        return MemoryRenewer(self.server)

    async def cancel(self, ref: RunRef) -> base.Status:
        """Latch cancel and make the owner look."""
        with self.server.transition(ref.workflow, ref.shard) as (shard, now):
            status = runs.cancel(shard, ref, now)
        return await _answer(status)

    async def fire_timers(self, workflow: str, shard: int, *, limit: int) -> base.Fired:
        """Make up to `limit` due runs claimable."""
        with self.server.transition(workflow, shard) as (state, now):
            fired = recovering.fire_timers(state, limit=limit, now=now)
        return await _answer(fired)

    async def pass_hint(self, workflow: str, shard: int) -> None:
        """Wake the next hungry member, if there is work."""
        with self.server.transition(workflow, shard) as (state, now):
            state.wake(min(1, len(state.queue)), now)
        await _answer(None)

    async def scan_orphans(
        self, workflow: str, shard: int, *, lock_ttl_ms: int, limit: int = 100
    ) -> base.Scanned:
        """Take one look at the shard's locks."""
        with self.server.transition(workflow, shard) as (state, now):
            scanned = recovering.scan_orphans(
                state, lock_ttl_ms=lock_ttl_ms, limit=limit, jitter=self._jitter, now=now
            )
        return await _answer(scanned)

    async def settle_death(
        self,
        workflow: str,
        shard: int,
        *,
        incarnation: str,
        cause: str,
        lost: Sequence[str] | None,
        limit: int = 1_000,
    ) -> base.Settled:
        """Bury a dead incarnation and requeue all it held."""
        with self.server.transition(workflow, shard) as (state, now):
            settled = recovering.settle_death(
                state,
                incarnation=incarnation,
                cause=cause,
                lost=lost,
                limit=limit,
                jitter=self._jitter,
                now=now,
            )
        return await _answer(settled)

    async def sweep(self, workflow: str, shard: int, *, limit: int = 100) -> int:
        """Forget expired runs."""
        with self.server.transition(workflow, shard) as (state, now):
            swept = recovering.sweep(state, limit=limit, now=now)
        return await _answer(swept)

    async def recover_pending_runs(self, workflow: str) -> int:
        """Requeue runs of a name nobody serves whose locks have lapsed."""
        recovered = 0
        for number in self.server.shards_of(workflow):
            with self.server.transition(workflow, number) as (shard, now):
                recovered += recovering.recover_pending(shard, jitter=self._jitter, now=now)
        return await _answer(recovered)

    async def info(self, ref: RunRef) -> base.RunInfo:
        """What is known of the run."""
        with self.server.transition(ref.workflow, ref.shard) as (shard, now):
            found = runs.info(shard, runs.find(shard, ref, now))
        return await _answer(found)

    async def find(self, run_id: str) -> list[RunRef]:
        """All runs with that id, of whatever workflow name."""
        self.server.check_up()
        found: list[RunRef] = []
        for workflow in sorted(self.server.registry):
            for number in self.server.shards_of(workflow):
                with self.server.transition(workflow, number) as (shard, now):
                    run = shard.find(run_id, now)
                    found += [run.ref] if run else []
        return await _answer(found)

    async def list_runs(
        self, workflow: str, *, status: base.Status | None, owner: str | None, limit: int
    ) -> list[base.RunInfo]:
        """The newest runs of a name that match, newest first."""
        self.server.check_up()
        matching: list[base.RunInfo] = []
        for number in self.server.shards_of(workflow):
            with self.server.transition(workflow, number) as (shard, now):
                matching += runs.matching(shard, status=status, owner=owner, now=now)
        matching.sort(key=lambda run: (run.created_ms, run.ref.run_id), reverse=True)
        return await _answer(matching[:limit])

    async def watch(self, ref: RunRef, member: str) -> base.Watch:
        """Register `member` for a `done` hint and tell how the run stands."""
        with self.server.transition(ref.workflow, ref.shard) as (shard, now):
            watch = runs.watch(shard, ref, member, now)
        return await _answer(watch)

    async def listen(
        self,
        member: str,
        on_hint: Callable[[base.Hint], None],
        on_gap: Callable[[], None],
    ) -> MemoryListener:
        """Subscribe to a member's hints."""
        ear = Ear(member=member, on_hint=on_hint, on_gap=on_gap)
        self.server.attach(ear)
        return await _answer(MemoryListener(self.server, ear))


class MemoryListener:
    """A live subscription to one member's hints."""

    def __init__(self, server: MemoryServer, ear: Ear) -> None:
        self._server = server
        self._ear = ear

    @property
    def degraded(self) -> bool:
        """True while the server is down."""
        return not self._server.up

    async def close(self) -> None:
        """Stop listening; no callback comes after it returns."""
        self._server.detach(self._ear)


class MemoryRenewer:
    """Renews locks from whatever thread calls it."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    def renew(self, locks: Sequence[Lock], ttl_ms: int) -> list[base.RenewReply]:
        """One reply per lock, in order."""
        self._server.check_up()
        return [self._renew(lock, ttl_ms) for lock in locks]

    def close(self) -> None:
        """There is nothing to give back."""

    def _renew(self, lock: Lock, ttl_ms: int) -> base.RenewReply:
        with self._server.transition(lock.ref.workflow, lock.ref.shard) as (shard, now):
            return owning.renew(shard, lock, ttl_ms, now)


class _Posted:
    """The answer to a post: a reply, or a refusal that awaiting raises."""

    def __init__(self, answer: base.AppendReply | StoreError) -> None:
        self._answer = answer

    @property
    def arrived(self) -> bool:
        """Whether the events are in the journal."""
        return not isinstance(self._answer, StoreError)

    def __await__(self) -> Generator[Any, None, base.AppendReply]:
        yield from asyncio.sleep(0).__await__()
        if isinstance(self._answer, StoreError):
            raise self._answer
        return self._answer


async def _answer(value: T) -> T:
    await asyncio.sleep(0)
    return value
