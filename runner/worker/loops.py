"""The shape of a background loop, and what happens when one fails.

Owns the restart policy: a store or network error is logged once per outage and the loop restarts
after a jittered delay that doubles from 0.5 to 30 s, ended early by a new contact with the store;
any other exception leaves `run` and stops the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod

import structlog
from opentelemetry import metrics

from pyrula.workflows.stores.errors import StoreUnavailable
from pyrula.workflows.worker.core import Core

log = structlog.get_logger()
_restarts = metrics.get_meter("pyrula.workflows").create_counter(
    "pyrula.workflows.loop.restarts", description="Background loops restarted after a store error"
)

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
UNTIL_WOKEN_S = 3_600.0  # the pause of a loop that has nothing to do until it is woken


class Loop(ABC):
    """One background duty: `tick`, then wait for `pause()` seconds or a `wake`."""

    name: str

    def __init__(self, core: Core) -> None:
        self.core = core
        self._woken = asyncio.Event()
        self._failures = 0

    @abstractmethod
    async def tick(self) -> None:
        """Do the duty once. Any error but `StoreUnavailable` stops the worker."""

    @abstractmethod
    def pause(self) -> float:
        """Seconds until the next tick."""

    def wake(self) -> None:
        """Tick now rather than after the pause."""
        self._woken.set()

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            contacts = self.core.store.contacts
            try:
                await self.tick()
            except StoreUnavailable as error:
                await self._restart_delay(error, contacts)
            else:
                self._recovered()
                await self.wait(self.pause())

    async def wait(self, seconds: float) -> None:
        """Return after `seconds`, or as soon as somebody calls `wake`."""
        if seconds > 0 and not self._woken.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
        self._woken.clear()

    async def _restart_delay(self, error: StoreUnavailable, contacts: int) -> None:
        if not self._failures:
            log.warning("loop_store_unavailable", loop=self.name, reason=error.message)
        delay = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2**self._failures)
        self._failures = min(self._failures + 1, 10)
        _restarts.add(1, {"loop": self.name})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay * (0.5 + self.core.seams.rng.random() / 2)):
                await self.core.store.next_contact(contacts)

    def _recovered(self) -> None:
        if self._failures:
            log.info("loop_recovered", loop=self.name)
        self._failures = 0
