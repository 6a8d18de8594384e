"""The integer codes in which scripts refuse, and the one place that turns them into exceptions.

Owns the vocabulary between Lua and Python. Scripts spell a code `Code.NAME`; the script build puts
the number in its place and refuses a name that isn't here. Every refusal is negative, so a reply
that counts something can never be taken for one.
"""

from __future__ import annotations

import enum

from pyrula.workflows.stores.errors import (
    ConfigurationError,
    ConflictError,
    JournalRolledBack,
    PyrulaError,
    RunFinishedError,
    RunNotFoundError,
    StoreEmptied,
    TokenRefused,
)


class Code(enum.IntEnum):
    """What a script answers instead of a result."""

    OK = 0
    TOKEN = -1
    LENGTH = -2
    STALE = -3
    DEAD = -4
    EMPTIED = -5
    NOT_FOUND = -6
    FINISHED = -7
    EXISTS = -8
    SHARD_COUNT = -9


def refusal(code: int, what: str) -> PyrulaError:
    """The exception for a negative reply; `what` names the run or shard it was about.

    >>> refusal(-6, "run order-7").code
    'run_not_found'
    """
    return _REFUSALS[Code(code)](what)


def _token(what: str) -> PyrulaError:
    return TokenRefused(
        f"expected to hold the lock of {what}, found that its token was replaced; "
        "another attempt owns it now, stand down"
    )


def _length(what: str) -> PyrulaError:
    return JournalRolledBack(
        f"expected the journal of {what} to be as long as its writer knew it, found it shorter; "
        "the store was rolled back, stand down and let the run be claimed again"
    )


def _stale(what: str) -> PyrulaError:
    return TokenRefused(
        f"expected the newest claim of {what}, found one with a lower number; "
        "a late duplicate, drop it",
        code="stale_claim",
    )


def _dead(what: str) -> PyrulaError:
    return TokenRefused(
        f"expected a living member to claim {what}, found that this one was declared dead; "
        "restart the process, a new incarnation is welcome",
        code="member_dead",
    )


def _emptied(what: str) -> PyrulaError:
    return StoreEmptied(
        f"expected the store's own mark beside {what}, found none or another's; "
        "the server was emptied or swapped, restore its data before going on"
    )


def _not_found(what: str) -> PyrulaError:
    return RunNotFoundError(
        f"expected {what} to be stored, found nothing; check the id and the workflow name, "
        "it may also have expired"
    )


def _finished(what: str) -> PyrulaError:
    return RunFinishedError(
        f"expected {what} to be unfinished, found that it has ended; it takes nothing more"
    )


def _exists(what: str) -> PyrulaError:
    return ConflictError(
        f"expected {what} to be new, found it submitted with other parameters; choose another id",
        code="run_exists",
    )


def _shard_count(what: str) -> PyrulaError:
    return ConfigurationError(
        f"expected the shard_count that {what} is recorded with, found another; set it back, or "
        "drain its runs before changing it",
        code="shard_count_mismatch",
    )


_REFUSALS = {
    Code.TOKEN: _token,
    Code.LENGTH: _length,
    Code.STALE: _stale,
    Code.DEAD: _dead,
    Code.EMPTIED: _emptied,
    Code.NOT_FOUND: _not_found,
    Code.FINISHED: _finished,
    Code.EXISTS: _exists,
    Code.SHARD_COUNT: _shard_count,
}
