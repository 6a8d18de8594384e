"""Publishing what executes, for whoever watches from outside.

Owns the seam between an attempt and the supervisor's page: `Publisher` gives each attempt a
`Published` that the engine tells of steps, and that wraps the attempt's coroutine so that every
resume is bracketed. Without a supervisor nothing is published and nothing is wrapped.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Protocol

from pyrula.supervisor.page import NEVER, Occupant, PageWriter, code_of
from pyrula.workflows.engine.env import Attribution, NoAttribution
from pyrula.workflows.stores.base import Lock
from pyrula.workflows.stores.seams import Clock


class Published(Attribution, Protocol):
    """One attempt as seen from outside."""

    def wrap(self, attempt: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        """The same coroutine, each resume of it published."""
        ...

    def closed(self) -> None:
        """The attempt is over."""
        ...


class Publisher(Protocol):
    """Where attempts are published."""

    def opened(self, lock: Lock) -> Published:
        """An attempt of this run begins."""
        ...


class _Unpublished(NoAttribution):
    def wrap(self, attempt: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        """The coroutine as it is."""
        return attempt

    def closed(self) -> None:
        """Nothing to close."""


_UNPUBLISHED = _Unpublished()


class NoPublisher:
    """A worker that nobody watches."""

    def opened(self, lock: Lock) -> Published:
        """Publish nothing."""
        return _UNPUBLISHED


class PagePublisher:
    """Publishes on the supervisor's page: one slot an attempt, while there are slots."""

    def __init__(self, page: PageWriter, clock: Clock) -> None:
        self._page = page
        self._clock = clock
        self._free = list(reversed(page.runs))

    def opened(self, lock: Lock) -> Published:
        """Take a slot for the run."""
        if not self._free:
            return _UNPUBLISHED
        slot = self._free.pop()
        self._page.open(
            slot,
            Occupant(
                run_id=lock.ref.run_id,
                workflow=lock.ref.workflow,
                token=lock.token,
                epoch=lock.epoch,
            ),
        )
        return _PublishedAttempt(self._page, self._clock, slot, self._free)


class _PublishedAttempt:
    """One attempt's slot on the page."""

    __slots__ = ("_clock", "_free", "_in_steps", "_page", "_slot")

    def __init__(self, page: PageWriter, clock: Clock, slot: int, free: list[int]) -> None:
        self._page = page
        self._clock = clock
        self._slot = slot
        self._free = free
        self._in_steps = 0

    def step_entered(self, path: str, name: str, timeout: float | None) -> None:
        """Show the step; with several legs the newest is shown."""
        deadline = NEVER if timeout is None else int((self._clock.monotonic() + timeout) * 1e9)
        self._page.step(self._slot, path, name, deadline)
        self._in_steps += 1
        if self._in_steps == 1:
            self._page.in_step(self._slot, inside=True)

    def step_left(self) -> None:
        """A step's outcome is durable; the bit stays while another leg is in one."""
        self._in_steps -= 1
        if self._in_steps == 0:
            self._page.in_step(self._slot, inside=False)

    def wrap(self, attempt: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        """Bracket every resume of the attempt."""
        return _Bracketed(attempt, self._page, code_of(self._slot))

    def closed(self) -> None:
        """Give the slot back."""
        self._page.close(self._slot)
        self._free.append(self._slot)


class _Bracketed(Coroutine[Any, Any, None]):
    """A coroutine each of whose resumes is on the page."""

    __slots__ = ("_code", "_inner", "_page")

    def __init__(self, inner: Coroutine[Any, Any, None], page: PageWriter, code: int) -> None:
        self._inner = inner
        self._page = page
        self._code = code

    def send(self, value: Any) -> Any:
        """Resume with a value."""
        outer = self._page.enter(self._code)
        try:
            return self._inner.send(value)
        finally:
            self._page.leave(outer)

    def throw(self, *error: Any) -> Any:
        """Resume with an exception."""
        outer = self._page.enter(self._code)
        try:
            return self._inner.throw(*error)
        finally:
            self._page.leave(outer)

    def close(self) -> None:
        """Close the attempt."""
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._inner.__await__()
