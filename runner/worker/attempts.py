"""Attempts: claimed runs on their way to an outcome.

Owns the table of runs in flight, each a task with a slot, a lock that is renewed, and an
`Activation`. Decides what each outcome means for the lock: ended, parked, lost, or to be given
back. Refuses to judge a body: that is the engine's outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import structlog

from pyrula.workflows.engine.activation import Activation, Outcome
from pyrula.workflows.engine.crashpoints import crash_point
from pyrula.workflows.engine.env import Env, Limits, event_cap
from pyrula.workflows.engine.failures import run_error
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
    StoreEmptied,
    StoreUnavailable,
    TokenRefused,
    TruncatedHistoryError,
)
from pyrula.workflows.stores.events import RequeueReason, pack
from pyrula.workflows.stores.seams import Clock
from pyrula.workflows.worker.attribution import NoPublisher, Published, Publisher
from pyrula.workflows.worker.core import Core
from pyrula.workflows.worker.giving_back import GiveBackLoop, Owed
from pyrula.workflows.worker.pool import StepPool
from pyrula.workflows.worker.renewal import Held, Renewal
from pyrula.workflows.worker.timers import TimerLoop

log = structlog.get_logger()


@dataclass(slots=True)
class BoundJournal:
    """The store's journal operations under one lock, until it is closed."""

    store: Store
    lock: Lock
    closed: bool = False

    def post(self, first_seq: int, events: Sequence[bytes]) -> Posted:
        """See `Store.post`."""
        return self._open().post(self.lock, first_seq, events)

    async def append(self, first_seq: int, events: Sequence[bytes]) -> AppendReply:
        """See `Store.append`."""
        return await self._open().append(self.lock, first_seq, events)

    async def park(
        self, first_seq: int, events: Sequence[bytes], *, due_ms: int | None
    ) -> ParkReply:
        """See `Store.park`."""
        return await self._open().park(self.lock, first_seq, events, due_ms=due_ms)

    async def finish(self, first_seq: int, events: Sequence[bytes], *, status: Status) -> None:
        """See `Store.finish`."""
        await self._open().finish(self.lock, first_seq, events, status=status)

    def _open(self) -> Store:
        if self.closed:
            raise TokenRefused(
                f"expected an attempt that holds run {self.lock.ref.run_id}, found one that gave "
                "it up; nothing was written"
            )
        return self.store


@dataclass(slots=True)
class Attempt:
    """A run in flight; `activation` is None until its journal is here."""

    claimed: Claimed
    journal: BoundJournal
    published: Published
    activation: Activation | None = None
    task: asyncio.Task[None] | None = None
    ending: Literal["stood_down", "lost"] | None = None
    fetching: bool = False
    held: Held | None = None

    def stand_down(self) -> None:
        """Give the run up for others to go on with."""
        self._end("stood_down")
        if self.activation is not None:
            self.activation.stand_down()

    def lock_lost(self) -> None:
        """Somebody else has the run: unwind, write nothing more."""
        self.journal.closed = True
        self._end("lost")
        if self.activation is not None:
            self.activation.lock_lost()

    def notice(self, flags: Flag) -> None:
        """Others want something of the run. Before its body runs, the next reply tells again."""
        if self.activation is not None:
            self.activation.notice(flags)

    def given_up(self, kind: Literal["store_lost", "stood_down"]) -> Outcome:
        """The outcome of an attempt that ends here without an end of the run."""
        if self.activation is not None:
            return self.activation.given_up(kind)
        return Outcome(kind=kind, first_seq=self.claimed.length + 1)

    def ended_early(self) -> Outcome:
        """The outcome of an attempt that was told to end before its body began."""
        return Outcome(kind="lost") if self.ending == "lost" else self.given_up("stood_down")

    def _end(self, how: Literal["stood_down", "lost"]) -> None:
        self.ending = how
        if self.fetching and self.task is not None:
            self.task.cancel()


def _is_trusted(held: Held | None, clock: Clock) -> bool:
    return held is not None and clock.monotonic() < held.trusted_until


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
            max_events=event_cap(core.options.max_event_count_per_run, core.store.maxlen),
            step_boundary_durability=core.options.step_boundary_durability,
            event_buffer_size=core.options.event_buffer_size,
        )
        self.live: dict[Lock, Attempt] = {}
        self._standing_down = False
        self._abandoned: list[Attempt] = []  # keeps their tasks referenced
        self.giving_back = GiveBackLoop(core, self._released)

    # Beginning

    def start(self, reply: ClaimReply, asked_at: float) -> None:
        """Start an attempt for every claimed run; each already has a slot reserved.

        `asked_at` (monotonic) is when the claim was first sent: the locks are trusted from there.
        """
        trusted_until = asked_at + self._core.options.lock_ttl
        loop = asyncio.get_running_loop()
        for claimed in reply.runs:
            crash_point("after_claim")
            lock = claimed.lock
            journal = BoundJournal(self._core.store, lock)
            attempt = Attempt(claimed, journal, self._publisher.opened(lock))
            self.live[lock] = attempt
            attempt.held = self._hold(lock, attempt, trusted_until)
            if self._standing_down:
                attempt.stand_down()  # the claim was on its way when the grace ended
            attempt.task = loop.create_task(attempt.published.wrap(self._run(attempt)))

    def cancel_requested(self, workflow: str, run_id: str) -> None:
        """A hint says that the run has been cancelled."""
        for attempt in list(self.live.values()):
            ref = attempt.claimed.lock.ref
            if (ref.workflow, ref.run_id) == (workflow, run_id):
                attempt.notice(Flag.CANCEL)

    # Ending

    async def finished(self) -> None:
        """Return when no run is in flight."""
        while self.live:
            await asyncio.wait([a.task for a in self.live.values() if a.task is not None])

    def stand_down_all(self) -> None:
        """Unwind every body, from now on; their runs go back to their queues."""
        self._standing_down = True
        for attempt in list(self.live.values()):
            attempt.stand_down()

    def abandon_all(self) -> None:
        """Give up the runs whose bodies would not unwind; nothing they still write counts."""
        while self.live:
            _, attempt = self.live.popitem()
            attempt.journal.closed = True
            self._conclude(attempt, attempt.given_up("stood_down"))
            self._abandoned.append(attempt)

    def cancel_all(self) -> None:
        """The worker ends now, drained or not: let no body run on."""
        for attempt in self.live.values():
            if attempt.task is not None:
                attempt.task.cancel()

    # One attempt

    async def _run(self, attempt: Attempt) -> None:
        outcome = Outcome(kind="lost")  # of whatever ends an attempt in no other way
        try:
            outcome = await self._outcome(attempt)
        finally:
            attempt.published.closed()
            abandoned = self.live.pop(attempt.claimed.lock, None) is None
            self._core.slots.release()
            if not abandoned:
                self._conclude(attempt, outcome)

    async def _outcome(self, attempt: Attempt) -> Outcome:
        try:
            return await self._attempt(attempt)
        except asyncio.CancelledError:
            return attempt.ended_early()
        except (TokenRefused, JournalRolledBack):
            return Outcome(kind="lost")
        except (StoreUnavailable, StoreEmptied):
            return attempt.given_up("store_lost")
        except BaseException:
            # A fault of ours or of the store: it must not end the worker, nor hold the run.
            log.exception("attempt_failed", run_id=attempt.claimed.lock.ref.run_id)
            return attempt.given_up("stood_down")

    async def _attempt(self, attempt: Attempt) -> Outcome:
        claimed = attempt.claimed
        ref = claimed.lock.ref
        if attempt.ending is not None:
            return attempt.ended_early()
        try:
            history = await self._history(attempt)
        except TruncatedHistoryError as error:
            return await self._truncated(attempt, error)
        attempt.activation = Activation(
            self._core.definitions[ref.workflow],
            ref.run_id,
            history,
            attempt.journal,
            Env(
                now_ms=self._core.store_clock.now_ms,
                call_sync=self._pool,
                attribution=attempt.published,
                limits=self._limits,
                sleeper=self._core.seams.sleeper,
                lock_trusted=partial(_is_trusted, attempt.held, self._core.seams.clock),
            ),
            flags=claimed.flags,
        )
        return await attempt.activation.run()

    async def _history(self, attempt: Attempt) -> list[bytes]:
        claimed = attempt.claimed
        if claimed.trimmed == 0 and len(claimed.page) == claimed.length:
            return claimed.page
        attempt.fetching = True
        try:
            return await self._whole_history(claimed)
        finally:
            attempt.fetching = False

    async def _whole_history(self, claimed: Claimed) -> list[bytes]:
        if claimed.trimmed:
            raise TruncatedHistoryError(
                f"expected the whole history of run {claimed.lock.ref.run_id}, found "
                f"{claimed.trimmed} of its oldest events trimmed; raise the store's maxlen, or "
                "split the work into several runs",
                detail={"missing": claimed.trimmed},
            )
        events = list(claimed.page)
        while len(events) < claimed.length:
            page = await self._core.store.read_journal(claimed.lock.ref, len(events) + 1)
            if not page.events:
                raise JournalRolledBack(
                    f"expected {claimed.length} events of run {claimed.lock.ref.run_id}, found "
                    f"{page.length}; the store was rolled back"
                )
            events.extend(page.events)
        return events

    async def _truncated(self, attempt: Attempt, error: TruncatedHistoryError) -> Outcome:
        end = pack(run_error(error, self._core.store_clock.now_ms()))
        await attempt.journal.finish(attempt.claimed.length + 1, [end], status="failed")
        return Outcome(kind="failed")

    def _conclude(self, attempt: Attempt, outcome: Outcome) -> None:
        lock = attempt.claimed.lock
        reason = self._reason_to_give_back(outcome)
        if reason is not None:
            self.giving_back.owe(Owed(lock, outcome.first_seq, outcome.unsaved, reason))
            return
        self._renewal.drop(lock)
        if outcome.kind == "parked" and outcome.due_ms is not None:
            self._timers.expect(lock.ref.workflow, lock.ref.shard, outcome.due_ms)

    def _reason_to_give_back(self, outcome: Outcome) -> RequeueReason | None:
        """Why the run is requeued; None if its lock is not ours any more."""
        if outcome.kind == "store_lost":
            return "store_unavailable"
        if outcome.kind == "stood_down":
            return "drained" if self._core.draining else "stood_down"
        return None

    # Locks

    def _hold(self, lock: Lock, attempt: Attempt, trusted_until: float) -> Held:
        def lost() -> None:
            self._renewal.drop(lock)
            attempt.lock_lost()

        timeout = self._core.definitions[lock.ref.workflow].timeout or 0.0
        bound_s = max(3 * self._core.options.lock_ttl, timeout)
        held = Held(lock, trusted_until, bound_s, lost, attempt.notice)
        self._renewal.hold(held)
        return held

    def _released(self, owed: Owed) -> None:
        self._renewal.drop(owed.lock)
        self._timers.look(owed.lock.ref.workflow, owed.lock.ref.shard)
