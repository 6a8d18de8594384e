"""Giving runs back to their queues.

Owns the runs that this worker gave up while it still holds their locks: each is requeued at the
first contact with the store, with the events that may not have arrived. Until then its lock is
renewed, so that nobody takes it half written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from pyrula.workflows.stores.base import Lock
from pyrula.workflows.stores.events import RequeueReason, RunRequeued, pack
from pyrula.workflows.worker.core import Core
from pyrula.workflows.worker.loops import UNTIL_WOKEN_S, Loop

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Owed:
    """A run still locked by us that has to go back to its queue."""

    lock: Lock
    first_seq: int
    events: list[bytes]
    reason: RequeueReason


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
        return 0.0 if self._owed else UNTIL_WOKEN_S

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
