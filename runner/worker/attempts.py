"""Attempts: claimed runs on their way to an outcome.

Owns the table of runs in flight, each a task with a slot, a lock that is renewed, and an
`Activation`. Decides what each outcome means for the lock: ended, parked, lost, or to be given back.
Runs given back while the store is away are owed: they are requeued at the first contact, with the
events that may not have arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from pyrula.workflows.engine.activation import Activation, Outcome
from pyrula.workflows.engine.crashpoints import crash_point
from pyrula.workflows.engine.env import Env, Limits
from pyrula.workflows.stores.base import (
    AppendReply,
    Claimed,
    ClaimReply,
    Flag,
    Lock,
    ParkReply,
    Posted,
    Status,
    Store,
)
from pyrula.workflows.stores.errors import (
    JournalRolledBack,
    StoreUnavailable,
    TokenRefused,
    TruncatedHistoryError,
)
from pyrula.workflows.stores.events import RequeueReason, RunError, RunRequeued, pack
from pyrula.workflows.worker.attribution import NoPublisher, Published, Publisher
from pyrula.workflows.worker.core import Core
from pyrula.workflows.worker.loops import Loop
from pyrula.workflows.worker.pool import StepPool
from pyrula.workflows.worker.renewal import Held, Renewal
from pyrula.workflows.worker.timers import TimerLoop

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class BoundJournal:
    """The store's journal operations under one lock."""

    store: Store
    lock: Lock

    def post(self, first_seq: int, events: Sequence[bytes]) -> Posted:
        """See `Store.post`."""
        return self.store.post(self.lock, first_seq, events)

    def append(self, first_seq: int, events: Sequence[bytes]) -> Awaitable[AppendReply]:
        """See `Store.append`."""
        return self.store.append(self.lock, first_seq, events)

    async def park(
        self, first_seq: int, events: Sequence[bytes], *, due_ms: int | None
    ) -> ParkReply:
        """See `Store.park`."""
        return await self.store.park(self.lock, first_seq, events, due_ms=due_ms)

    async def finish(self, first_seq: int, events: Sequence[bytes], *, status: Status) -> None:
        """See `Store.finish`."""
        await self.store.finish(self.lock, first_seq, events, status=status)


@dataclass(slots=True)
class Attempt:
    """A run in flight; `activation` is None while its journal is being fetched."""

    claimed: Claimed
    published: Published
    activation: Activation | None = None
    task: asyncio.Task[None] | None = None
    standing_down: bool = False

    def stand_down(self) -> None:
        """Give the run up for others to go on with."""
        self.standing_down = True
        if self.activation is not None:
            self.activation.stand_down()
        elif self.task is not None:
            self.task.cancel()


@dataclass(frozen=True, slots=True)
class Owed:
    """A run still locked by us that has to go back to its queue."""

    lock: Lock
    first_seq: int
    events: list[bytes]
    reason: RequeueReason


class Attempts:
    """All runs in flight of one worker."""

    def __init__(
        self,
        core: Core,
        renewal: Renewal,
        timers: TimerLoop,
        pool: StepPool,
        publisher: Publisher | None = None,
    ) -> None:
        self._core = core
        self._renewal = renewal
        self._timers = timers
        self._pool = pool
        self._publisher = publisher or NoPublisher()
        self._limits = Limits(
            payload_bytes=core.options.payload_limit_bytes,
            max_events=core.options.max_event_count_per_run,
            step_boundary_durability=core.options.step_boundary_durability,
            event_buffer_size=core.options.event_buffer_size,
        )
        self.live: dict[str, Attempt] = {}
        self.giving_back = GiveBackLoop(core, self._released)

    # Beginning

    def start(self, reply: ClaimReply) -> None:
        """Start an attempt for every claimed run; each already has a slot reserved."""
        loop = asyncio.get_running_loop()
        for claimed in reply.runs:
            crash_point("after_claim")
            attempt = Attempt(claimed, self._publisher.opened(claimed.lock))
            key = claimed.lock.token + claimed.lock.ref.run_id
            self.live[key] = attempt
            self._hold(claimed.lock, attempt)
            attempt.task = loop.create_task(attempt.published.wrap(self._run(key, attempt)))

    def cancel_requested(self, workflow: str, run_id: str) -> None:
        """A hint says that the run has been cancelled: look at its flags now."""
        for attempt in self.live.values():
            ref = attempt.claimed.lock.ref
            if (ref.workflow, ref.run_id) == (workflow, run_id) and attempt.activation is not None:
                attempt.activation.notice(Flag.CANCEL)

    def stand_down_all(self) -> None:
        """Unwind every body; their runs go back to their queues."""
        for attempt in list(self.live.values()):
            attempt.stand_down()

    def abandon_all(self) -> None:
        """Owe the runs whose bodies would not unwind; what they still write is refused."""
        for key, attempt in list(self.live.items()):
            self.live.pop(key)
            claimed = attempt.claimed
            self._give_back(claimed.lock, claimed.length + 1, [], "drained")

    # One attempt

    async def _run(self, key: str, attempt: Attempt) -> None:
        try:
            outcome = await self._attempt(attempt)
        except asyncio.CancelledError:
            outcome = Outcome(kind="stood_down", first_seq=attempt.claimed.length + 1)
        except (TokenRefused, JournalRolledBack):
            outcome = Outcome(kind="lost")
        except StoreUnavailable:
            outcome = Outcome(kind="store_lost", first_seq=attempt.claimed.length + 1)
        finally:
            attempt.published.closed()
            abandoned = self.live.pop(key, None) is None
            self._core.slots.release()
        if not abandoned:
            self._conclude(attempt, outcome)

    async def _attempt(self, attempt: Attempt) -> Outcome:
        claimed = attempt.claimed
        ref = claimed.lock.ref
        definition = self._core.definitions[ref.workflow]
        journal = BoundJournal(self._core.store, claimed.lock)
        history = claimed.page
        if claimed.trimmed or len(history) < claimed.length:
            try:
                history = await self._whole_history(claimed)
            except TruncatedHistoryError as error:
                return await self._truncated(claimed, journal, error)
        attempt.activation = Activation(
            definition,
            ref.run_id,
            history,
            journal,
            Env(
                now_ms=self._core.store_clock.now_ms,
                call_sync=self._pool,
                attribution=attempt.published,
                limits=self._limits,
                sleeper=self._core.seams.sleeper,
            ),
            flags=claimed.flags,
        )
        return await attempt.activation.run()

    async def _whole_history(self, claimed: Claimed) -> list[bytes]:
        if claimed.trimmed:
            raise TruncatedHistoryError(
                f"expected the whole history of run {claimed.lock.ref.run_id}, found "
                f"{claimed.trimmed} of its oldest events trimmed; raise maxlen, or end long runs "
                "with ctx.continue_as_new()",
                detail={"missing": claimed.trimmed},
            )
        events = list(claimed.page)
        while len(events) < claimed.length:
            page = await self._core.store.read_journal(claimed.lock.ref, len(events) + 1)
            events.extend(page.events)
        return events

    async def _truncated(
        self, claimed: Claimed, journal: BoundJournal, error: TruncatedHistoryError
    ) -> Outcome:
        event = RunError(
            t=self._core.store_clock.now_ms(),
            code=error.code,
            error_type=type(error).__name__,
            message=error.message,
            detail=error.detail,
        )
        await journal.finish(claimed.length + 1, [pack(event)], status="failed")
        return Outcome(kind="failed")

    def _conclude(self, attempt: Attempt, outcome: Outcome) -> None:
        lock = attempt.claimed.lock
        if outcome.kind == "store_lost":
            self._give_back(lock, outcome.first_seq, outcome.unsaved, "store_unavailable")
        elif outcome.kind == "stood_down":
            reason: RequeueReason = "drained" if self._core.draining else "stood_down"
            self._give_back(lock, outcome.first_seq, outcome.unsaved, reason)
        else:
            self._renewal.drop(lock)
        if outcome.kind == "parked" and outcome.due_ms is not None:
            self._timers.expect(lock.ref.workflow, lock.ref.shard, outcome.due_ms)

    # Locks

    def _hold(self, lock: Lock, attempt: Attempt) -> None:
        def lost() -> None:
            self._renewal.drop(lock)
            if attempt.activation is not None:
                attempt.activation.lock_lost()

        timeout = self._core.definitions[lock.ref.workflow].timeout or 0.0
        bound_s = max(3 * self._core.options.lock_ttl, timeout)
        self._renewal.hold(
            Held(lock, bound_s, lost, lambda flags: self._flags(attempt, flags))
        )

    def _flags(self, attempt: Attempt, flags: Flag) -> None:
        if attempt.activation is not None:
            attempt.activation.notice(flags)

    def _give_back(
        self, lock: Lock, first_seq: int, events: list[bytes], reason: RequeueReason
    ) -> None:
        self.giving_back.owe(Owed(lock, first_seq, events, reason))

    def _released(self, owed: Owed) -> None:
        self._renewal.drop(owed.lock)
        self._timers.look(owed.lock.ref.workflow, owed.lock.ref.shard)


class GiveBackLoop(Loop):
    """Requeues runs that this worker gave up, as soon as the store can be reached."""

    name = "give_back"

    def __init__(self, core: Core, on_released: Callable[[Owed], None]) -> None:
        super().__init__(core)
        self._owed: list[Owed] = []
        self._on_released = on_released
        self._nothing_owed = asyncio.Event()
        self._nothing_owed.set()

    def owe(self, owed: Owed) -> None:
        """This run goes back to its queue."""
        self._owed.append(owed)
        self._nothing_owed.clear()
        self.wake()

    def pause(self) -> float:
        """Until somebody owes a run."""
        return 0.0 if self._owed else 3600.0

    async def tick(self) -> None:
        """Requeue everything owed."""
        while self._owed:
            await self._requeue(self._owed[0])
            self._on_released(self._owed.pop(0))
        self._nothing_owed.set()

    async def settled(self) -> None:
        """Return when nothing is owed any more."""
        await self._nothing_owed.wait()

    async def _requeue(self, owed: Owed) -> None:
        event = RunRequeued(t=self.core.store_clock.now_ms(), reason=owed.reason)
        # An outage or a drain says nothing against the run: it doesn't wait longer for it.
        backoff = owed.reason in {"stood_down", "loop_blocked"}
        given = await self.core.store.requeue(
            owed.lock, owed.first_seq, [*owed.events, pack(event)], backoff=backoff
        )
        if given:
            log.info("run_requeued", run_id=owed.lock.ref.run_id, reason=owed.reason)
