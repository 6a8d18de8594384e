"""Exceptions as data, and data as the one exception that a body sees.

Owns how an error is written down: type name, message and code, always encodable, never more than
4,096 characters. Refuses to bring a stored type back to life: names in a journal are shown only.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pyrula.workflows.stores.errors import PyrulaError
from pyrula.workflows.stores.events import ErrorRecord, RunError

_LONGEST = 4096


class RemoteError(PyrulaError):
    """A step failed for good; the same on the first pass and on replay.

    `type_name` is the original exception's name, shown and never imported; on the first pass the
    original is the `__cause__`.
    """

    default_code = "step_failed"

    def __init__(self, record: ErrorRecord, step: str) -> None:
        super().__init__(record.message, code=record.code, detail={"step": step})
        self.type_name = record.type
        self.step = step


def error_record(error: BaseException) -> ErrorRecord:
    """What `step:error` keeps of an exception."""
    code = error.code if isinstance(error, PyrulaError) else None
    return ErrorRecord(type=_type_name(error), message=_message(error), code=code)


def run_error(error: BaseException, now_ms: int) -> RunError:
    """The terminal event of a run that `error` ended."""
    known = error if isinstance(error, PyrulaError) else None
    return RunError(
        t=now_ms,
        code=known.code if known else "workflow_failed",
        error_type=_type_name(error),
        message=_message(error),
        detail=_encodable(known.detail) if known else None,
    )


def _type_name(error: BaseException) -> str:
    return error.type_name if isinstance(error, RemoteError) else type(error).__name__


def _message(error: BaseException) -> str:
    try:
        text = error.message if isinstance(error, PyrulaError) else str(error)
        return text[:_LONGEST].encode("utf-8", "replace").decode() or _type_name(error)
    except Exception:  # noqa: BLE001  an exception of the user's may fail to describe itself
        return _type_name(error)


def _encodable(detail: dict[str, Any]) -> dict[str, Any] | None:
    try:
        msgspec.json.encode(detail)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    return detail or None
