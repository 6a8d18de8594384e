"""Why a body is unwound without having failed.

Owns the reasons. They derive from `BaseException`, because user code must not swallow them by
`except Exception`, and they are latched: once there is one, every further context call unwinds too.
"""

from __future__ import annotations

import asyncio

from pyrula.workflows.stores.errors import PyrulaError


class Unwinding(BaseException):
    """Root of the reasons; whatever the body does about it, the attempt ends by it."""


def is_failure(error: BaseException) -> bool:
    """Whether user code failed with it, rather than being unwound.

    Also what derives from `BaseException` alone (a panic of an extension written in Rust).
    """
    return not isinstance(error, Unwinding | asyncio.CancelledError | GeneratorExit)


class Suspended(Unwinding):
    """The run was parked until `due_ms`: a later attempt replays to this point."""

    def __init__(self, due_ms: int | None) -> None:
        super().__init__("the run is parked; this attempt of it is over")
        self.due_ms = due_ms


class LockLost(Unwinding):
    """The run belongs to somebody else now: nothing this attempt still does is recorded."""


class StoreLost(Unwinding):
    """The store can't be reached: the run goes back to its queue and is replayed."""


class Doomed(Unwinding):
    """The run ends in `error`, even if the body would handle it: the journal can't go on."""

    def __init__(self, error: PyrulaError) -> None:
        super().__init__(error.message)
        self.error = error


class Cancelled(Unwinding):
    """The caller cancelled the run; the body sees `asyncio.CancelledError`."""


class StoodDown(Unwinding):
    """The worker gives the run up unharmed; the body sees `asyncio.CancelledError`."""
