"""Why a body is unwound without having failed.

Owns the three exceptions that user code must not swallow by `except Exception`, which is why they
derive from `BaseException`. A context call made while unwinding raises the same one again.
"""

from __future__ import annotations


class Suspended(BaseException):
    """The run was parked: this attempt is over, a later one replays to this point."""


class LockLost(BaseException):
    """The run belongs to somebody else now: nothing this attempt still does is recorded."""


class StreamTooLarge(BaseException):
    """The journal reached its event cap; the run ends in `stream_too_large`."""
