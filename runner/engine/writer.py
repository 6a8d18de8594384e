"""The one writer of a run's journal during an attempt.

Owns sequence numbers, the events whose answers are outstanding, and the event cap. `note` hands an
event over without waiting; `commit` is the one awaited round trip of a step and carries along every
event that may not have arrived, so a lost `step:pending` heals itself. Refuses to decide what is
written: the context does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable

from pyrula.workflows.engine.env import Journal, Limits
from pyrula.workflows.engine.unwinding import StreamTooLarge
from pyrula.workflows.stores.base import AppendReply, Flag, ParkReply, Status
from pyrula.workflows.stores.errors import JournalRolledBack
from pyrula.workflows.stores.events import Event, pack


class _Entry:
    __slots__ = ("answer", "carried", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.answer: Awaitable[AppendReply] | None = None
        self.carried = False


class JournalWriter:
    """Appends to one journal under one lock, from sequence `length + 1` on."""

    def __init__(self, journal: Journal, length: int, limits: Limits) -> None:
        self._journal = journal
        self._limits = limits
        self._acked = length
        self._tail: deque[_Entry] = deque()
        self.flags = Flag.NONE

    @property
    def length(self) -> int:
        """The sequence of the last event written, acknowledged or not."""
        return self._acked + len(self._tail)

    def unsaved(self) -> tuple[int, list[bytes]]:
        """First sequence and bytes of the events that may not have arrived."""
        return self._acked + 1, [entry.raw for entry in self._tail]

    def note(self, event: Event) -> None:
        """Give the event to the kernel, not waiting for the answer; buffered in write-behind."""
        entry = self._add(event)
        if self._limits.step_boundary_durability:
            entry.answer = self._journal.post(self.length, (entry.raw,))

    async def commit(self, event: Event) -> None:
        """Write the event and wait until it is durable; only buffer it in write-behind.

        Raises `TokenRefused`, `JournalRolledBack`, `StoreUnavailable`.
        """
        self._add(event)
        if (
            self._limits.step_boundary_durability
            or len(self._tail) >= self._limits.event_buffer_size
        ):
            await self.flush()

    async def flush(self) -> None:
        """Wait until everything noted so far is durable."""
        self._drop_answered()
        last = self.length
        # What another leg's append already carries is in order before ours on the connection.
        carried = next((i for i, e in enumerate(self._tail) if not e.carried), len(self._tail))
        try:
            reply = await self._append(carried)
        except JournalRolledBack:
            if not carried:
                raise
            # The other leg's append failed, so ours left a gap: carry everything ourselves.
            reply = await self._append(0)
        self.flags |= reply.flags
        self._acknowledge(last)

    async def park(self, event: Event | None, due_ms: int | None) -> ParkReply:
        """Append what is outstanding (and `event`) and give the run up, unless it is due."""
        if event is not None:
            self._add(event)
        last = self.length
        reply = await self._journal.park(*self.unsaved(), due_ms=due_ms)
        self._acknowledge(last)
        return reply

    async def finish(self, events: list[Event], status: Status) -> None:
        """Append what is outstanding and `events`, the last one terminal, and end the run."""
        first, unsaved = self.unsaved()
        await self._journal.finish(first, [*unsaved, *map(pack, events)], status=status)

    async def _append(self, skip: int) -> AppendReply:
        entries = list(self._tail)[skip:]
        for entry in entries:
            entry.carried = True
        try:
            return await self._journal.append(self._acked + skip + 1, [e.raw for e in entries])
        except BaseException:
            for entry in entries:
                entry.carried = False
            raise

    def _add(self, event: Event) -> _Entry:
        # Two places stay free for the overflow marker and the terminal event.
        if self.length + 2 >= self._limits.max_events:
            raise StreamTooLarge
        entry = _Entry(pack(event))
        self._tail.append(entry)
        return entry

    def _drop_answered(self) -> None:
        while self._tail and _arrived(self._tail[0]):
            self._tail.popleft()
            self._acked += 1

    def _acknowledge(self, last: int) -> None:
        while self._acked < last and self._tail:
            self._tail.popleft()
            self._acked += 1


def _arrived(entry: _Entry) -> bool:
    answer = entry.answer
    return (
        isinstance(answer, asyncio.Future)
        and answer.done()
        and not answer.cancelled()
        and answer.exception() is None
    )
