"""Publishing what executes, for whoever watches from outside.

Owns the seam between an attempt and the supervisor's page: `Publisher` gives each attempt a
`Published` that the engine tells of steps, and that wraps the attempt's coroutine so that every
resume is bracketed. Without a supervisor nothing is published and nothing is wrapped.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from pyrula.workflows.engine.env import Attribution, NoAttribution
from pyrula.workflows.stores.base import Lock


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
