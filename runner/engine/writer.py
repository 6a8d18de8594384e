"""The one writer of a run's journal during an attempt.

Owns sequence numbers, the events whose answers are outstanding, and the event cap. `note` hands an
event over without waiting; `commit` is the one awaited round trip of a step and carries along every
event that may not have arrived, so a lost `step:pending` heals itself. What ends the attempt here
(a refused token, a store out of reach, a full journal) is told to `unwind` and raised as an
`Unwinding`. Refuses to decide what is written: the context does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from pyrula.workflows.engine.env import Journal, Limits
from pyrula.workflows.engine.unwinding import Doomed, LockLost, StoreLost, Unwinding
from pyrula.workflows.stores.base import Flag, ParkReply, Posted, Status
from pyrula.workflows.stores.errors import (
    JournalRolledBack,
    PyrulaError,
    StoreError,
    TokenRefused,
)
from pyrula.workflows.stores.events import Event, pack


class StreamTooLargeError(PyrulaError):
    """The run needs more events than its journal may have."""

    default_code = "stream_too_large"


class JournalWriter:
    """Appends to one journal under one lock, from sequence `length + 1` on.

    Every method that writes raises `LockLost`, `StoreLost` or `Doomed`.
    """

    def __init__(
        self, journal: Journal, length: int, limits: Limits, unwind: Callable[[Unwinding], None]
    ) -> None:
        self._journal = journal
        self._unwind = unwind
        self._durable = limits.step_boundary_durability
        self._buffer_size = limits.event_buffer_size
        # Two places stay free for the overflow marker and the terminal event.
        self._most = limits.max_events - 2
        self._acked = length
        # Sequence of the last event that an append in flight carries.
        self._carried = length
        self._tail: deque[tuple[bytes, Posted | None]] = deque()
        self.flags = Flag.NONE

    @property
    def length(self) -> int:
        """The sequence of the last event written, acknowledged or not."""
        return self._acked + len(self._tail)

    def unsaved(self) -> tuple[int, list[bytes]]:
        """First sequence and bytes of the events that may not have arrived."""
        return self._acked + 1, [raw for raw, _ in self._tail]

    def note(self, event: Event) -> None:
        """Give the event to the kernel, not waiting for the answer; buffered in write-behind."""
        # What is noted has an outcome to come: a step whose end has no room doesn't begin.
        raw, seq = pack(event), self._next(room=2)
        try:
            posted = self._journal.post(seq, (raw,)) if self._durable else None
        except StoreError as error:
            raise self._unwound(error) from error
        self._tail.append((raw, posted))

    async def commit(self, event: Event) -> None:
        """Write the event and wait until it is durable; only buffer it in write-behind."""
        self._next()
        self._tail.append((pack(event), None))
        if self._durable or len(self._tail) >= self._buffer_size:
            await self.flush()

    async def flush(self) -> None:
        """Wait until everything noted so far is durable."""
        tail = self._tail
        while tail and (posted := tail[0][1]) is not None and posted.arrived:
            tail.popleft()
            self._acked += 1
        last = self._acked + len(tail)
        # What another leg's append carries is ahead of ours on the connection: begin behind it.
        first = max(self._acked, self._carried) + 1
        try:
            await self._append(first, last)
        except StoreError as error:
            if not isinstance(error, JournalRolledBack) or first == self._acked + 1:
                raise self._unwound(error) from error
            # The other leg's append failed, so ours left a gap: carry everything ourselves.
            await self._append_again(last)
        self._acknowledge(last)

    async def park(self, event: Event | None, due_ms: int | None) -> ParkReply:
        """Append what is outstanding (and `event`) and give the run up, unless it is due."""
        if event is not None:
            self._next()
            self._tail.append((pack(event), None))
        last = self.length
        try:
            reply = await self._journal.park(*self.unsaved(), due_ms=due_ms)
        except StoreError as error:
            raise self._unwound(error) from error
        self._acknowledge(last)
        return reply

    async def finish(self, events: list[Event], status: Status) -> None:
        """Append what is outstanding and `events`, the last one terminal, and end the run."""
        first, unsaved = self.unsaved()
        try:
            await self._journal.finish(first, [*unsaved, *map(pack, events)], status=status)
        except StoreError as error:
            raise self._unwound(error) from error

    async def _append_again(self, last: int) -> None:
        try:
            await self._append(self._acked + 1, last)
        except StoreError as error:
            raise self._unwound(error) from error

    async def _append(self, first: int, last: int) -> None:
        events = [raw for raw, _ in islice(self._tail, first - 1 - self._acked, None)]
        self._carried = last
        try:
            reply = await self._journal.append(first, events)
        except BaseException:
            self._carried = self._acked
            raise
        if reply.flags:
            self.flags |= reply.flags

    def _next(self, room: int = 1) -> int:
        """The sequence of the next event. Raises `Doomed` when fewer than `room` more fit."""
        seq = self._acked + len(self._tail) + 1
        if seq + room - 1 > self._most:
            raise self._unwound(_too_large(self._most + 2))
        return seq

    def _unwound(self, error: PyrulaError) -> Unwinding:
        reason: Unwinding
        if isinstance(error, StreamTooLargeError):
            reason = Doomed(error)
        elif isinstance(error, TokenRefused | JournalRolledBack):
            reason = LockLost(error.message)
        else:  # away, emptied, or no longer letting us in: nothing that the run did wrong
            reason = StoreLost(error.message)
        self._unwind(reason)
        return reason

    def _acknowledge(self, last: int) -> None:
        while self._acked < last and self._tail:
            self._tail.popleft()
            self._acked += 1


def _too_large(limit: int) -> StreamTooLargeError:
    return StreamTooLargeError(
        f"expected a run of at most {limit} events, found one that needs more; raise "
        "max_event_count_per_run and the store's maxlen, or split the work into several runs",
        detail={"limit": limit},
    )
