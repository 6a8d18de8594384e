"""Keeping run locks alive from a thread of its own.

Owns the renewal thread: every third of `lock_ttl` it renews what the attempts hold, over its own
connection, so a body that blocks the event loop keeps its lock up to max(3 x lock_ttl, timeout) and
no longer. It takes no lock that loop code can hold: the table of held locks is a dict that only the
loop changes and the thread copies in one step under the GIL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from pyrula.workflows.stores.base import Flag, Lock, Renewer
from pyrula.workflows.stores.errors import StoreUnavailable
from pyrula.workflows.worker.core import Core

log = structlog.get_logger()
BEAT_S = 0.1


@dataclass(slots=True)
class Held:
    """A lock to renew, how long it may be kept over a blocked loop (s), and whom to tell.

    `trusted_until` (monotonic) counts from before the claim or renewal was sent, so a slow answer,
    or a process that was stopped, trusts the lock for too short a time and never for too long.
    """

    lock: Lock
    trusted_until: float
    bound_s: float
    on_lost: Callable[[], None]
    on_flags: Callable[[Flag], None]


class Renewal:
    """Renews locks until `close`. `hold`, `drop` and `beat` are called on the loop."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._held: dict[Lock, Held] = {}
        self._beat = core.seams.clock.monotonic()
        self._closed = core.seams.spawner.flag()
        self._interval = core.options.lock_ttl / 3
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: Exception | None = None

    def start(self) -> None:
        """Start the thread; from the running loop."""
        self._loop = asyncio.get_running_loop()
        renewer = self._core.store.renewer()
        self._core.seams.spawner.spawn("pyrula-renewal", lambda: self._run(renewer))

    def close(self) -> None:
        """Stop renewing; the thread ends by itself."""
        self._closed.set()

    def hold(self, held: Held) -> None:
        """Renew this lock from now on."""
        self._held[held.lock] = held

    def drop(self, lock: Lock) -> None:
        """The lock was given up."""
        self._held.pop(lock, None)

    async def beat(self) -> None:
        """Prove, for as long as it runs, that the loop turns; raises what ended the thread."""
        while self._failure is None:
            self._beat = self._core.seams.clock.monotonic()
            await self._core.seams.sleeper.sleep(BEAT_S)
        raise self._failure

    def _run(self, renewer: Renewer) -> None:
        wait, failing = self._interval, False
        while not self._closed.wait(wait):
            try:
                self._renew(renewer)
                wait, failing = self._interval, False
            except StoreUnavailable as error:
                # Sooner than a third: what counts is to renew within the lifetime.
                wait = self._interval / 10
                if not failing:
                    log.warning("renewal_store_unavailable", reason=error.message)
                failing = True
            except Exception as error:  # noqa: BLE001  without renewals the worker must stop
                self._failure = error
                break
        renewer.close()

    def _renew(self, renewer: Renewer) -> None:
        stale_s = self._core.seams.clock.monotonic() - self._beat
        due = [held for held in list(self._held.values()) if stale_s <= held.bound_s]
        if not due:
            return
        trusted_until = self._core.seams.clock.monotonic() + self._core.options.lock_ttl
        replies = renewer.renew([held.lock for held in due], self._core.lock_ttl_ms)
        for held, reply in zip(due, replies, strict=True):
            if not reply.held:
                self._tell(held.on_lost)
                continue
            held.trusted_until = trusted_until
            if reply.flags:
                self._tell(held.on_flags, reply.flags)

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(callback, *args)
