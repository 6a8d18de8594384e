"""Threads for sync steps.

Owns daemon threads of our own, at most min(32, CPUs + 4), so that a hung step never delays the exit
of the process. A caller that is cancelled stops waiting; its thread goes on and its result is
dropped. Refuses to kill anything.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from pyrula.workflows.stores.seams import Spawner

log = structlog.get_logger()
_Job = tuple[asyncio.Future[Any], contextvars.Context, Callable[[], Any]]


def pool_size() -> int:
    """The most threads a worker uses for sync steps."""
    return min(32, (os.cpu_count() or 1) + 4)


class StepPool:
    """Runs blocking callables in threads; call it from the event loop."""

    def __init__(self, spawner: Spawner, size: int | None = None) -> None:
        self._spawner = spawner
        self._size = size or pool_size()
        self._threads = 0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._busy = 0
        self._saturation_logged = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def busy(self) -> int:
        """Calls that are in a thread or wait for one."""
        return self._busy

    async def __call__(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """The result of `fn(*args, **kwargs)`, run in a thread with the caller's context."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._jobs.put((future, contextvars.copy_context(), lambda: fn(*args, **kwargs)))
        self._busy += 1
        self._idle.clear()
        self._make_room(loop)
        return await future

    async def settled(self) -> None:
        """Return when no call is in a thread any more."""
        await self._idle.wait()

    def close(self) -> None:
        """Let idle threads end; busy ones end after their call."""
        for _ in range(self._threads):
            self._jobs.put(None)

    def _make_room(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._busy <= self._threads:
            return
        if self._threads < self._size:
            self._threads += 1
            self._spawner.spawn(f"pyrula-step-{self._threads}", lambda: self._work(loop))
        elif not self._saturation_logged:
            self._saturation_logged = True
            log.warning("user_code_threads_saturated", threads=self._size)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while (job := self._jobs.get()) is not None:
            future, context, call = job
            result: Any = None
            failure: BaseException | None = None
            # Cancelled while it waited for a thread: the run may be somebody else's by now.
            if not future.cancelled():
                try:
                    result = context.run(call)
                except BaseException as error:  # noqa: BLE001  carried to the caller
                    failure = error
            try:
                loop.call_soon_threadsafe(self._done, future, result, failure)
            except RuntimeError:
                return  # the loop is closed: nobody waits

    def _done(
        self, future: asyncio.Future[Any], result: Any, failure: BaseException | None
    ) -> None:
        self._busy -= 1
        if not self._busy:
            self._idle.set()
        if future.cancelled():
            return
        if failure is None:
            future.set_result(result)
        elif isinstance(failure, StopIteration):
            future.set_exception(RuntimeError(f"a sync step raised {failure!r}"))
        else:
            future.set_exception(failure)
