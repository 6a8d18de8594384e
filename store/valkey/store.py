"""`ValkeyStore`: the `Store` protocol over one Valkey (or Redis) server.

Owns one thin method a transition: spell the keys, run the script, read the reply. What a transition
means is written in `lua/`; how a request survives a lost answer in `calls`; who the server is in
`session`. Appends have a connection to themselves; journal pages come over a second one, so that a
step never queues behind megabytes.

Refuses clusters, for now.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from pyrula.workflows.stores import base
from pyrula.workflows.stores.base import Lock, RunRef
from pyrula.workflows.stores.errors import InvalidInputError, JournalRolledBack, TokenRefused
from pyrula.workflows.stores.seams import Seams
from pyrula.workflows.stores.valkey import decode, journal, listing, registry
from pyrula.workflows.stores.valkey.blocking import ValkeyRenewer
from pyrula.workflows.stores.valkey.calls import Request
from pyrula.workflows.stores.valkey.config import ValkeyConfig
from pyrula.workflows.stores.valkey.decode import text
from pyrula.workflows.stores.valkey.hints import ValkeyListener
from pyrula.workflows.stores.valkey.journal import Appending, append_request
from pyrula.workflows.stores.valkey.keys import Keys, run_keys
from pyrula.workflows.stores.valkey.listing import Filter
from pyrula.workflows.stores.valkey.session import Session
from pyrula.workflows.stores.valkey.url import StoreUrl

# What one script call may touch, so that none takes longer than 5 ms.
MOST_CLAIMED = 256
KEY_TTL_MS = 86_400_000  # an idempotency key's record outlives the run by far
MOST_TAKEN = 200
MOST_FIRED = 500

_PARKED: tuple[Literal["parked", "cancel", "due"], ...] = ("parked", "cancel", "due")
_WORD = re.compile(r"[a-z][a-z0-9_]{0,39}")
_MOST_CACHED_KEYS = 4_096


class ValkeyStore:
    """A store in Valkey. `options` are the fields of `ValkeyConfig`; `seams` bring chance and ids.

    Raises `ConfigurationError` for a malformed URL or option; connects at `open()`.

    >>> store = ValkeyStore("valkey://localhost:6379", shard_count=16)
    >>> await store.open()  # doctest: +SKIP
    """

    def __init__(self, url: str, *, seams: Seams | None = None, **options: Any) -> None:
        self.config = ValkeyConfig(**options)
        self.url = StoreUrl.parse(url)
        self._maxlen = self.config.maxlen
        self._seams = seams or Seams()
        self._keys = Keys(self.config.namespace)
        self._session = Session(self.url, self.config, self._keys, self._seams)
        self._prefixes: dict[tuple[str, int], str] = {}
        self._run_keys: dict[str, tuple[RunRef, tuple[str, str]]] = {}

    @property
    def shard_count(self) -> int:
        """The configured number of shards per workflow name."""
        return self.config.shard_count

    @property
    def maxlen(self) -> int:
        """How many events a journal keeps; the oldest beyond are trimmed."""
        return self._maxlen

    @property
    def contacts(self) -> int:
        """How often contact with the server was made; grows at each reconnect."""
        return self._session.contacts

    @property
    def store_id(self) -> str:
        """The mark of the store's data; empty before the first contact."""
        return self._session.store_id

    async def open(self) -> None:
        """Connect and check the server; see `Store.open`."""
        await self._session.open()

    async def close(self) -> None:
        """Let go of all connections. Safe to call twice."""
        await self._session.close()

    async def ping(self) -> None:
        """Return if the store answers now."""
        await self._session.main.command(b"PING")

    async def next_contact(self, seen: int) -> int:
        """Return `contacts` as soon as it is greater than `seen`."""
        return await self._session.next_contact(seen)

    # -- names --------------------------------------------------------------------------------

    async def register(self, workflow: str, *, serving: bool) -> base.Registration:
        """Record the name with this store's shard_count, or adopt what is recorded."""
        return await registry.register(
            self._session.main,
            self._keys,
            workflow,
            shard_count=self.config.shard_count,
            store_id=self._session.store_id,
            serving=serving,
        )

    async def workflows(self) -> list[str]:
        """All registered names, sorted."""
        return await registry.names(self._session.main, self._keys)

    # -- the life of a run --------------------------------------------------------------------

    async def submit(self, submission: base.Submission) -> bool:
        """Accept the run once; see `Store.submit`."""
        ref, main = submission.ref, self._session.main
        # In the same write as the submit and ahead of it; a line without a run is harmless.
        line = listing.index_line(ref.workflow, ref.shard)
        indexing: Request = (b"SADD", self._keys.index(ref.run_id), line)
        indexed = main.link.call(*indexing)
        created = await main.run(
            b"submit_run",
            (self._prefix(ref.workflow, ref.shard),),
            ref.run_id,
            submission.digest,
            submission.owner or "",
            submission.delay_ms,
            self._session.store_id,
            self._seams.ids.token(),
            submission.init,
            what=f"run {ref.run_id}",
        )
        await main.answer(indexing, indexed)
        return bool(created)

    async def reserve_key(self, key_id: str, reservation: base.Reservation) -> base.Reservation:
        """Tie an idempotency key to a run id, once; see `Store.reserve_key`."""
        reply = await self._session.main.run(
            b"reserve_key",
            (self._keys.idempotency(key_id),),
            reservation.run_id,
            reservation.digest,
            max(KEY_TTL_MS, self.config.completed_ttl_ms),
        )
        return base.Reservation(*map(text, reply))

    async def claim(self, request: base.ClaimRequest) -> base.ClaimReply:
        """Take runs in FIFO order; at most 256 at a time."""
        reply = await self._session.main.run(
            b"claim_runs",
            (self._prefix(request.workflow, request.shard),),
            request.incarnation,
            request.n,
            request.nonce,
            min(request.limit, MOST_CLAIMED),
            request.lock_ttl_ms,
            request.hungry_ms,
            request.byte_budget,
            self._session.store_id,
            what=f"shard {request.shard} of {request.workflow}",
        )
        return decode.claim_reply(reply, request)

    def post(self, lock: Lock, first_seq: int, events: Sequence[bytes]) -> base.Posted:
        """As `append`, but its bytes are with the kernel when this returns."""
        main = self._session.main
        ref = lock.ref
        request = append_request(main.sha, self._keys_of(ref), lock.token, first_seq, events)
        return Appending(main, request, main.link.send(*request), ref.run_id, self._maxlen)

    async def append(self, lock: Lock, first_seq: int, events: Sequence[bytes]) -> base.AppendReply:
        """Write events, skipping those already there; see `Store.append`."""
        main = self._session.main
        if main.link.paused:
            await main.link.drained()
        ref = lock.ref
        request = append_request(main.sha, self._keys_of(ref), lock.token, first_seq, events)
        return await Appending(main, request, main.link.call(*request), ref.run_id, self._maxlen)

    async def read_journal(
        self, ref: RunRef, first_seq: int, *, max_events: int = 1_000, max_bytes: int = 8 << 20
    ) -> base.JournalPage:
        """Events from `first_seq` on; see `Store.read_journal`."""
        return await journal.read_journal(
            self._session.bulk,
            self._keys_of(ref),
            ref,
            first_seq,
            max_events=min(max_events, self.config.replay_page_size),
            max_bytes=min(max_bytes, self.config.replay_page_bytes),
        )

    async def park(
        self, lock: Lock, first_seq: int, events: Sequence[bytes], *, due_ms: int | None
    ) -> base.ParkReply:
        """Append and give the run up until something happens; see `Store.park`."""
        due = "" if due_ms is None else due_ms
        outcome, now = await self._give_up(b"park_run", lock, (due,), first_seq, events)
        return base.ParkReply(outcome=_PARKED[int(outcome)], now_ms=now)

    async def requeue(
        self, lock: Lock, first_seq: int, events: Sequence[bytes], *, backoff: bool
    ) -> bool:
        """Append and give the run up, in its old place in the queue; see `Store.requeue`."""
        how = (int(backoff), self._seams.rng.random())
        try:
            await self._give_up(b"requeue_run", lock, how, first_seq, events)
        except (TokenRefused, JournalRolledBack):
            return False
        return True

    async def finish(
        self, lock: Lock, first_seq: int, events: Sequence[bytes], *, status: base.Status
    ) -> None:
        """Append the terminal event and end the run; see `Store.finish`."""
        how = (status, self.config.completed_ttl_ms)
        await self._give_up(b"finish_run", lock, how, first_seq, events)

    def renewer(self) -> ValkeyRenewer:
        """A blocking renewer for the caller's thread, over a connection of its own."""
        return ValkeyRenewer(self.url, self._keys, source=self._session.source)

    async def cancel(self, ref: RunRef) -> base.Status:
        """Latch cancel and make the owner look; see `Store.cancel`."""
        status: bytes = await self._of_run(b"cancel_run", ref, self._seams.ids.token())
        return _status(status)

    # -- nobody's runs ------------------------------------------------------------------------

    async def fire_timers(self, workflow: str, shard: int, *, limit: int) -> base.Fired:
        """Make up to `limit` due runs claimable."""
        now, count, next_due = await self._of_shard(
            b"fire_timers", workflow, shard, min(limit, MOST_FIRED), self._seams.ids.token()
        )
        return base.Fired(count=count, next_due_ms=None if next_due < 0 else next_due, now_ms=now)

    async def pass_hint(self, workflow: str, shard: int) -> None:
        """Wake the next hungry member; see `Store.pass_hint`."""
        await self._of_shard(b"pass_hint", workflow, shard)

    async def scan_orphans(
        self, workflow: str, shard: int, *, lock_ttl_ms: int, limit: int = 100
    ) -> base.Scanned:
        """Take one of the two looks; see `Store.scan_orphans`."""
        suspected, requeued, look_again = await self._of_shard(
            b"scan_orphans",
            workflow,
            shard,
            lock_ttl_ms,
            min(limit, MOST_TAKEN),
            self._seams.rng.random(),
            self._seams.ids.token(),
        )
        return base.Scanned(
            suspected=suspected,
            requeued=requeued,
            look_again_ms=None if look_again < 0 else look_again,
        )

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
        """Bury a dead incarnation and requeue what it held, 200 runs a call; see `Store`."""
        requeued, more = await self._of_shard(
            b"settle_death",
            workflow,
            shard,
            incarnation,
            "worker_lost",
            _vetted(cause),
            min(limit, MOST_TAKEN),
            self._seams.rng.random(),
            self._seams.ids.token(),
            *(("all",) if lost is None else ("some", *lost)),
        )
        return base.Settled(requeued=requeued, more=bool(more))

    async def sweep(self, workflow: str, shard: int, *, limit: int = 100) -> int:
        """Forget index lines of expired runs; returns how many."""
        return await listing.sweep(self._session.main, self._keys, workflow, shard, limit)

    async def recover_pending_runs(self, workflow: str) -> int:
        """Requeue runs of a name nobody serves whose locks have lapsed; returns how many."""
        recovered = 0
        for shard in range(await registry.recorded_count(self._session.main, self._keys, workflow)):
            taken = MOST_TAKEN
            while taken == MOST_TAKEN:
                (taken,) = await self._of_shard(
                    b"recover_runs",
                    workflow,
                    shard,
                    MOST_TAKEN,
                    self._seams.rng.random(),
                    self._seams.ids.token(),
                )
                recovered += taken
        return recovered

    # -- questions ----------------------------------------------------------------------------

    async def info(self, ref: RunRef) -> base.RunInfo:
        """What is known of the run. Raises `RunNotFoundError`."""
        return decode.run_info(await self._of_run(b"read_info", ref), ref)

    async def find(self, run_id: str) -> list[RunRef]:
        """All runs with that id, of whatever workflow name."""
        return await listing.find(self._session.main, self._keys, run_id)

    async def list_runs(
        self, workflow: str, *, status: base.Status | None, owner: str | None, limit: int
    ) -> list[base.RunInfo]:
        """The newest runs of a name that match, newest first."""
        want = Filter(status=status, owner=owner)
        return await listing.list_runs(self._session.bulk, self._keys, workflow, want, limit)

    async def watch(self, ref: RunRef, member: str) -> base.Watch:
        """Register `member` for a `done` hint and tell how the run stands, in one step."""
        status, terminal = await self._of_run(b"watch_run", ref, member)
        return base.Watch(status=_status(status), terminal=terminal)

    async def listen(
        self, member: str, on_hint: Callable[[base.Hint], None], on_gap: Callable[[], None]
    ) -> ValkeyListener:
        """Subscribe to a member's hints; acknowledged when this returns."""
        listener = ValkeyListener(self.url, on_hint, on_gap)
        await listener.open(self._keys.channel(member))
        return listener

    # -- details ------------------------------------------------------------------------------

    def _prefix(self, workflow: str, shard: int) -> str:
        prefix = self._prefixes.get((workflow, shard))
        if prefix is None:
            prefix = self._prefixes[workflow, shard] = self._keys.shard(workflow, shard)
        return prefix

    def _keys_of(self, ref: RunRef) -> tuple[str, str]:
        known = self._run_keys.get(ref.run_id)
        if known is None or (known[0] is not ref and known[0] != ref):
            if len(self._run_keys) >= _MOST_CACHED_KEYS:
                self._run_keys.clear()
            keys = run_keys(self._prefix(ref.workflow, ref.shard), ref.run_id)
            known = self._run_keys[ref.run_id] = (ref, keys)
        return known[1]

    async def _give_up(
        self,
        operation: bytes,
        lock: Lock,
        how: tuple[str | float, ...],
        first_seq: int,
        events: Sequence[bytes],
    ) -> Any:
        ref = lock.ref
        self._run_keys.pop(ref.run_id, None)
        return await self._of_run(operation, ref, lock.token, *how, first_seq, *events)

    async def _of_run(self, operation: bytes, ref: RunRef, *args: str | bytes | float) -> Any:
        keys = (self._prefix(ref.workflow, ref.shard),)
        return await self._session.main.run(
            operation, keys, ref.run_id, *args, what=f"run {ref.run_id}"
        )

    async def _of_shard(
        self, operation: bytes, workflow: str, shard: int, *args: str | float
    ) -> Any:
        return await self._session.main.run(
            operation,
            (self._prefix(workflow, shard),),
            *args,
            what=f"shard {shard} of {workflow}",
        )


def _status(word: bytes) -> base.Status:
    status: base.Status = text(word)  # type: ignore[assignment]
    return status


def _vetted(cause: str) -> str:
    if cause and not _WORD.fullmatch(cause):
        raise InvalidInputError(
            f"expected a cause of small letters, digits and _, found {cause[:40]!r}",
            code="invalid_cause",
        )
    return cause
