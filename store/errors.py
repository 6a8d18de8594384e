"""The one error tree: every class has a stable `code` and a sentence a person can act on.

Owns the vocabulary in which all floors report failure: Python callers see the class, the CLI and
HTTP show `code`, `message` and `detail` as the same JSON object. Refuses to carry secrets: whoever
builds a message passes URLs through `StoreUrl.safe()` first.

A message says what was expected, what was found and what to do about it.
"""

from __future__ import annotations

from typing import Any, ClassVar


class PyrulaError(Exception):
    """Root of all errors of the product.

    `code` is stable across releases; `detail` holds JSON-able facts for machines.

    >>> ConfigurationError("expected shard_count >= 1, found 0; set it", code="invalid_option").code
    'invalid_option'
    """

    default_code: ClassVar[str] = "error"

    def __init__(
        self, message: str, *, code: str | None = None, detail: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.detail = detail or {}

    def as_dict(self) -> dict[str, Any]:
        """The JSON object that the CLI and HTTP show for this error."""
        return {"code": self.code, "message": self.message, "detail": self.detail}


class ConfigurationError(PyrulaError):
    """The product was set up in a way that can't work; nothing was started."""

    default_code = "configuration"


class InvalidInputError(PyrulaError, ValueError):
    """A name, id or argument given by the caller breaks a rule; nothing was written."""

    default_code = "invalid_input"


class ConflictError(PyrulaError):
    """The id or idempotency key already belongs to a different submission."""

    default_code = "conflict"


class RunNotFoundError(PyrulaError):
    """No run of that name and id is stored (never submitted, or expired)."""

    default_code = "run_not_found"


class RunFinishedError(PyrulaError):
    """The run has ended (or is about to), so it can't take what was sent."""

    default_code = "run_finished"


class RunFailedError(PyrulaError):
    """The awaited run ended in `run:error`; carries that event's fields."""

    default_code = "run_failed"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        error_type: str = "",
        detail: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message, code=code, detail=detail)
        self.error_type = error_type


class RunCancelledError(PyrulaError):
    """The awaited run was cancelled."""

    default_code = "run_cancelled"


class ResultTimeout(PyrulaError, TimeoutError):
    """The run had not finished within the given timeout; it goes on."""

    default_code = "result_timeout"


class PayloadError(PyrulaError, ValueError):
    """A value can't be journaled, or what was journaled can't be restored.

    Codes: `payload_not_serialisable`, `payload_too_large`, `result_type_mismatch`.
    """

    default_code = "payload_not_serialisable"


class StoreError(PyrulaError):
    """Root of what a store refuses or can't do."""

    default_code = "store_error"


class StoreUnavailable(StoreError):
    """The store did not answer, or can't take writes now; retry, nothing is lost.

    `applied_unknown` is true when the request may have been applied before the answer got lost.
    """

    default_code = "store_unavailable"

    def __init__(
        self, message: str, *, applied_unknown: bool = False, detail: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message, detail=detail)
        self.applied_unknown = applied_unknown


class StoreEmptied(StoreError):
    """The server behind the URL lost or swapped its data; never taken for a fresh start."""

    default_code = "store_emptied"


class WrongServer(StoreError):
    """The server answers but can't be used: `store_wrong_server`, `store_auth`, `store_cluster`…"""

    default_code = "store_wrong_server"


class TokenRefused(StoreError):
    """The fencing token is no longer the run's: the lock was lost and nothing was written."""

    default_code = "lock_lost"


class JournalRolledBack(StoreError):
    """The journal is shorter than its one writer knew it: the store was rolled back."""

    default_code = "journal_rolled_back"


class TruncatedHistoryError(StoreError):
    """Old events were trimmed, so the run can't be replayed; `detail["missing"]` counts them."""

    default_code = "truncated_history"


class IncompatibleUpgradeError(PyrulaError):
    """The journal and the deployed code disagree about what the run did."""

    default_code = "incompatible_upgrade"


class JournalFormatError(PyrulaError):
    """A journal event can't be read by this build (damaged, or written by a newer one)."""

    default_code = "journal_format"
