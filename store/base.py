"""The Store protocol: the transitions a run goes through, the same for every store.

Owns the contract between the floors above and whatever keeps the runs. A transition is one atomic
step in one shard; it is idempotent, so that repeating a call whose answer got lost gives the same
answer. `tests/conformance` holds every store to this page.

Refuses: CRUD (nobody sets a status), clocks of callers (due-ness and expiry are decided by store
time), and user payloads (opaque bytes, never decoded by a store).

The life of a run: `register` a workflow name, `submit`, `claim` (gives a `Lock` with a fencing
token), `post`/`append` events, then `park`, `requeue` or `finish`, each of which gives the lock up.
`renew` keeps a lock alive, `scan_orphans` and `settle_death` take it from the dead, `fire_timers`
makes parked and delayed runs claimable, `cancel` latches a flag that the owner sees in its next
reply. Everything a lost owner still sends is refused with `TokenRefused`.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol

import msgspec

Status = Literal[
    "queued",
    "running",
    "sleeping",
    "waiting",
    "paused",
    "completed",
    "failed",
    "cancelled",
    "terminated",
    "continued",
]
TERMINAL: frozenset[Status] = frozenset(
    {"completed", "failed", "cancelled", "terminated", "continued"}
)


class Flag(enum.IntFlag):
    """What others have left for the owner; rides on append, renew and claim replies."""

    NONE = 0
    CANCEL = 1
    PAUSE = 2
    INBOX = 4


class RunRef(msgspec.Struct, frozen=True):
    """Where a run lives. `shard` comes from `shards.hashing.shard_of`."""

    workflow: str
    run_id: str
    shard: int


class Lock(msgspec.Struct, frozen=True):
    """One attempt's right to write. `token` = epoch + 128 random bits, compared for equality."""

    ref: RunRef
    token: str
    epoch: int
    incarnation: str


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What a workflow name is recorded with."""

    shard_count: int
    store_id: str
    served: bool


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A run to be accepted.

    `init` is the packed `run:init`; `digest` identifies name and parameters, so that a repeated
    submit of the same run id is told from a clash; `delay_ms` ≥ 0 postpones its first claim.
    """

    ref: RunRef
    init: bytes
    digest: str
    owner: str | None = None
    delay_ms: int = 0


class Reservation(msgspec.Struct, frozen=True):
    """What an idempotency key is tied to; the record outlives the run, at least for 24 hours."""

    run_id: str
    digest: str


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Ask one shard for up to `limit` runs.

    `n` counts this incarnation's claims of this shard upwards from 1, one outstanding at a time:
    the same `n` again gives the same answer, a lower one is refused as stale. `nonce` are the 128
    random bits of the tokens handed out. A claim that gets less than `limit` registers the
    incarnation as hungry for `hungry_ms`.
    """

    workflow: str
    shard: int
    incarnation: str
    n: int
    nonce: str
    limit: int
    lock_ttl_ms: int
    hungry_ms: int = 3_000
    byte_budget: int = 256 * 1024


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is now owned by the claimer.

    `page` holds the journal's first events that fitted the byte budget; `length` is the sequence of
    the last event, `trimmed` how many of the oldest are gone. `page` is complete when
    `trimmed + len(page) == length`; the rest is read with `read_journal`.
    """

    lock: Lock
    page: list[bytes]
    length: int
    trimmed: int
    flags: Flag
    lost: int


class ClaimReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a claim; `now_ms` is store time."""

    runs: list[Claimed]
    now_ms: int


class AppendReply(msgspec.Struct, frozen=True):
    """`length` is the journal's last sequence after the append."""

    length: int
    flags: Flag


class JournalPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events `first_seq`, `first_seq + 1`, … as far as the limits allowed."""

    events: list[bytes]
    first_seq: int
    length: int
    trimmed: int


class ParkReply(msgspec.Struct, frozen=True, kw_only=True):
    """`parked` or the reason why not; the events were appended either way.

    After `"cancel"` or `"due"` the caller still owns the run and goes on with it.
    """

    outcome: Literal["parked", "cancel", "due"]
    now_ms: int


class RenewReply(msgspec.Struct, frozen=True):
    """`held` is false when the token was refused: stand down."""

    held: bool
    flags: Flag


class Fired(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs became claimable, and when the shard's next timer is due (store ms)."""

    count: int
    next_due_ms: int | None
    now_ms: int


class Scanned(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a shard's locks: newly suspected, requeued, and when to look again (ms)."""

    suspected: int
    requeued: int
    look_again_ms: int | None


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs of the dead were requeued; `more` asks for another call."""

    requeued: int
    more: bool


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run without reading its journal. Times are store ms."""

    ref: RunRef
    status: Status
    owner: str | None
    created_ms: int
    updated_ms: int
    due_ms: int | None
    events: int
    epoch: int
    lost: int
    incarnation: str | None


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """A run's status, and its terminal event once there is one."""

    status: Status
    terminal: bytes | None


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """A nudge over pub/sub; losing one only costs time, polling is the floor.

    `work`: the shard has something claimable. `cancel`: the run's owner should look at its flags.
    `done`: the watched run is terminal; `terminal` is its last event if it was small.
    """

    kind: Literal["work", "cancel", "done"]
    workflow: str
    shard: int
    run_id: str = ""
    terminal: bytes | None = None


class Posted(Awaitable[AppendReply], Protocol):
    """A posted append; awaiting it is optional."""

    @property
    def arrived(self) -> bool:
        """True once the store has said that the events are in the journal."""
        ...


class Listener(Protocol):
    """A live subscription to one member's hints."""

    @property
    def degraded(self) -> bool:
        """True while hints can't arrive (denied or disconnected) and polling must do."""
        ...

    async def close(self) -> None:
        """Stop listening; no callback comes after it returns."""
        ...


class Renewer(Protocol):
    """Renews locks from a thread of its own, over a connection of its own; blocking calls."""

    def renew(self, locks: Sequence[Lock], ttl_ms: int) -> list[RenewReply]:
        """One reply per lock, in order. Raises `StoreUnavailable`; then nothing is known."""
        ...

    def close(self) -> None:
        """Give the connection back."""
        ...


class Store(Protocol):
    """Every transition; see the module docstring for the order they come in.

    All of them raise `StoreUnavailable` when the store can't be reached or can't take writes, and
    `StoreEmptied` when it lost its data. Sequence numbers start at 1.
    """

    @property
    def shard_count(self) -> int:
        """The configured number of shards per workflow name."""
        ...

    @property
    def maxlen(self) -> int:
        """How many events a journal keeps; the oldest beyond are trimmed."""
        ...

    @property
    def contacts(self) -> int:
        """How often contact with the server was made; grows at each reconnect."""
        ...

    async def open(self) -> None:
        """Connect and check the server. Raises `WrongServer`, `ConfigurationError`."""
        ...

    async def close(self) -> None:
        """Let go of all connections. Safe to call twice."""
        ...

    async def ping(self) -> None:
        """Return if the store answers now."""
        ...

    async def next_contact(self, seen: int) -> int:
        """Return `contacts` as soon as it is greater than `seen`."""
        ...

    async def register(self, workflow: str, *, serving: bool) -> Registration:
        """Record the name with this store's shard_count, or adopt what is recorded.

        With `serving` (a worker) a different recorded count raises `ConfigurationError`
        `shard_count_mismatch` and the name is marked as served; without it (a client) the recorded
        count is returned.
        """
        ...

    async def workflows(self) -> list[str]:
        """All registered names, sorted."""
        ...

    async def submit(self, submission: Submission) -> bool:
        """Accept the run; true if this call created it, false if it was there with that digest.

        Raises `ConflictError` `run_exists` when the id is taken by another digest.
        """
        ...

    async def reserve_key(self, key_id: str, reservation: Reservation) -> Reservation:
        """Tie an idempotency key to a run id before the submit; returns what it is tied to.

        `key_id` stands for workflow name and key. Who finds another's reservation submits that run,
        so a submitter that died between the two is helped.
        """
        ...

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        """Take runs in FIFO order. Raises `TokenRefused` if `n` is stale or the member is dead."""
        ...

    def post(self, lock: Lock, first_seq: int, events: Sequence[bytes]) -> Posted:
        """As `append`, but its bytes are with the kernel when this returns.

        The answer may be left unawaited; a lost post is healed by the next `append`, which carries
        the events again.
        """
        ...

    async def append(self, lock: Lock, first_seq: int, events: Sequence[bytes]) -> AppendReply:
        """Write events as `first_seq`, `first_seq + 1`, …, skipping those already there.

        Raises `TokenRefused`, or `JournalRolledBack` when the journal is shorter than
        `first_seq - 1`.
        """
        ...

    async def read_journal(
        self, ref: RunRef, first_seq: int, *, max_events: int = 1_000, max_bytes: int = 8 << 20
    ) -> JournalPage:
        """Events from `first_seq` on, at least one if there is one.

        Raises `RunNotFoundError`, or `TruncatedHistoryError` when `first_seq` was trimmed away.
        """
        ...

    async def park(
        self, lock: Lock, first_seq: int, events: Sequence[bytes], *, due_ms: int | None
    ) -> ParkReply:
        """Append, then check cancel and dueness and give the run up in the same step.

        Raises as `append`. With `due_ms` the run sleeps until then.
        """
        ...

    async def requeue(
        self, lock: Lock, first_seq: int, events: Sequence[bytes], *, backoff: bool
    ) -> bool:
        """Append and give the run up, in its old place in the queue.

        False if the token was refused or the journal rolled back: it is somebody else's now. With
        `backoff`, attempts without progress wait longer and longer.
        """
        ...

    async def finish(
        self, lock: Lock, first_seq: int, events: Sequence[bytes], *, status: Status
    ) -> None:
        """Append, the last event being terminal, and end the run with `status`.

        Raises as `append`. Whoever watches the run is told.
        """
        ...

    def renewer(self) -> Renewer:
        """A blocking renewer for the caller's thread."""
        ...

    async def cancel(self, ref: RunRef) -> Status:
        """Latch cancel and make the owner look; a run without owner becomes claimable.

        Returns the status the run had. Raises `RunNotFoundError`, `RunFinishedError`.
        """
        ...

    async def fire_timers(self, workflow: str, shard: int, *, limit: int) -> Fired:
        """Make up to `limit` due runs claimable."""
        ...

    async def pass_hint(self, workflow: str, shard: int) -> None:
        """Wake the next hungry member, if there is work: the one that was told has no room."""
        ...

    async def scan_orphans(
        self, workflow: str, shard: int, *, lock_ttl_ms: int, limit: int = 100
    ) -> Scanned:
        """Two looks: suspect locks that missed a renewal, requeue those that missed the second.

        A lock with at most `lock_ttl_ms / 3` left is suspected; a suspect that has lapsed
        `lock_ttl_ms / 3` later is requeued with `lost` one higher.
        """
        ...

    async def settle_death(
        self,
        workflow: str,
        shard: int,
        *,
        incarnation: str,
        cause: str,
        lost: Sequence[str] | None,
        limit: int = 1_000,
    ) -> Settled:
        """Bury a dead incarnation and requeue all it held, uncharged, in place.

        Its later claims and renewals are refused for 10 minutes. `lost` names the run ids whose
        loss counts; None counts all of them, an empty list none.
        """
        ...

    async def sweep(self, workflow: str, shard: int, *, limit: int = 100) -> int:
        """Forget index lines of expired runs; returns how many."""
        ...

    async def recover_pending_runs(self, workflow: str) -> int:
        """Requeue runs of a name nobody serves whose locks have lapsed; returns how many."""
        ...

    async def info(self, ref: RunRef) -> RunInfo:
        """What is known of the run, without its journal. Raises `RunNotFoundError`."""
        ...

    async def find(self, run_id: str) -> list[RunRef]:
        """All runs with that id, of whatever workflow name."""
        ...

    async def list_runs(
        self, workflow: str, *, status: Status | None, owner: str | None, limit: int
    ) -> list[RunInfo]:
        """The newest runs of a name that match, newest first."""
        ...

    async def watch(self, ref: RunRef, member: str) -> Watch:
        """Register `member` for a `done` hint and tell how the run stands, in one step.

        Raises `RunNotFoundError`.
        """
        ...

    async def listen(
        self, member: str, on_hint: Callable[[Hint], None], on_gap: Callable[[], None]
    ) -> Listener:
        """Subscribe to a member's hints; acknowledged when this returns.

        `on_gap` is called on the loop when hints may have been missed.
        """
        ...
