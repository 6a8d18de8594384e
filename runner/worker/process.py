"""What every process that runs a worker needs: its signals, its loop, and patience at boot.

Owns the meaning of TERM and INT (the first drains, the second ends at once), the choice of event
loop, and waiting for a store that isn't there yet. Refuses to restart anything; a supervisor does.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from types import FrameType
from typing import Any

import structlog

from pyrula.workflows.stores.errors import ConfigurationError, StoreUnavailable
from pyrula.workflows.stores.seams import Seams

log = structlog.get_logger()
RETRY_S = 0.5


class Signals:
    """TERM and INT of this process: the first asks for a drain, the second ends it at once.

    Plain handlers, not the loop's: they run between bytecodes also while a body blocks the loop.
    """

    def __init__(self) -> None:
        self._stop: Callable[[], None] | None = None
        self.received = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def drain_with(self, stop: Callable[[], None]) -> None:
        """From now on a first signal calls `stop`; at once if it came already."""
        self._stop = stop
        if self.received:
            stop()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self.received:
            os._exit(128 + number)
        self.received = True
        if self._stop is not None:
            self._stop()


def loop_factory(kind: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the loop; `auto` is uvloop where it is installed.

    Raises `ConfigurationError` `no_uvloop`.
    """
    if kind == "asyncio":
        return None
    try:
        import uvloop
    except ImportError as error:
        if kind == "auto":
            return None
        raise ConfigurationError(
            "expected uvloop for --loop uvloop, found it not installed; install it or use "
            "--loop asyncio",
            code="no_uvloop",
        ) from error
    return uvloop.new_event_loop


def run_on_loop(main: Coroutine[Any, Any, None], kind: str) -> None:
    """Run `main` on a new loop of that kind, as the last thing this process does.

    What it leaves behind (a body that would not unwind, whose run was given back) ends with the
    process: waiting for that, as `asyncio.run` does, could take for ever.
    """
    factory = loop_factory(kind) or asyncio.new_event_loop
    loop = factory()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(main)


def settle_memory() -> None:
    """Take what was imported out of the garbage collector's sight, and let it look less often.

    A worker allocates many short-lived objects that reference counting frees; with the default
    thresholds a sixth of its CPU went into collections that found nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def reached(
    connect: Callable[[], Awaitable[None]], budget_s: float, signals: Signals, seams: Seams
) -> bool:
    """Connect, waiting for the store at most `budget_s` seconds; false if a signal came first.

    Raises `StoreUnavailable` when the budget is spent, and whatever else `connect` raises.
    """
    end = seams.clock.monotonic() + budget_s
    said = False
    while not signals.received:
        try:
            await connect()
            return True
        except StoreUnavailable as error:
            if seams.clock.monotonic() + RETRY_S > end:
                raise
            if not said:
                log.warning("store_unavailable", reason=error.message, patience_s=budget_s)
            said = True
        await seams.sleeper.sleep(RETRY_S)
    return False
