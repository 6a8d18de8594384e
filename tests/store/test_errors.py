"""One tree, stable codes, and a JSON object for machines."""

from __future__ import annotations

import json

import pytest

from pyrula.workflows.stores import errors
from pyrula.workflows.stores.errors import (
    ConfigurationError,
    InvalidInputError,
    PayloadError,
    PyrulaError,
    ResultTimeout,
    RunFailedError,
    StoreError,
    StoreUnavailable,
)

TREE = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, PyrulaError)
]

# What programs out there compare with: these may never change.
CODES = {
    "PyrulaError": "error",
    "ConfigurationError": "configuration",
    "InvalidInputError": "invalid_input",
    "ConflictError": "conflict",
    "RunNotFoundError": "run_not_found",
    "RunFinishedError": "run_finished",
    "RunFailedError": "run_failed",
    "RunCancelledError": "run_cancelled",
    "ResultTimeout": "result_timeout",
    "PayloadError": "payload_not_serialisable",
    "StoreError": "store_error",
    "StoreUnavailable": "store_unavailable",
    "StoreEmptied": "store_emptied",
    "WrongServer": "store_wrong_server",
    "TokenRefused": "lock_lost",
    "JournalRolledBack": "journal_rolled_back",
    "TruncatedHistoryError": "truncated_history",
    "IncompatibleUpgradeError": "incompatible_upgrade",
    "JournalFormatError": "journal_format",
}


def test_codes_are_stable() -> None:
    assert {kind.__name__: kind.default_code for kind in TREE if kind.__name__ in CODES} == CODES


def test_no_two_classes_share_a_code() -> None:
    codes = [kind.default_code for kind in TREE]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_error_says_what_it_means(kind: type[PyrulaError]) -> None:
    assert kind.__doc__
    error = kind("expected a, found b")
    assert str(error) == error.message == "expected a, found b"
    assert error.as_dict() == {"code": kind.default_code, "message": str(error), "detail": {}}


def test_an_error_is_a_json_object() -> None:
    error = ConfigurationError("no", code="invalid_option", detail={"key": "shard_count"})
    assert json.loads(json.dumps(error.as_dict())) == {
        "code": "invalid_option",
        "message": "no",
        "detail": {"key": "shard_count"},
    }


def test_errors_are_also_what_python_calls_them() -> None:
    assert issubclass(InvalidInputError, ValueError)
    assert issubclass(PayloadError, ValueError)
    assert issubclass(ResultTimeout, TimeoutError)


def test_refusals_of_a_store_are_store_errors() -> None:
    for kind in (StoreUnavailable, errors.TokenRefused, errors.JournalRolledBack):
        assert issubclass(kind, StoreError)


def test_an_unavailable_store_tells_whether_the_request_may_have_been_applied() -> None:
    assert StoreUnavailable("gone").applied_unknown is False
    assert StoreUnavailable("gone", applied_unknown=True).applied_unknown is True


def test_a_failed_run_carries_its_events_fields() -> None:
    error = RunFailedError("no money", code="declined", error_type="Declined", detail={"a": 1})
    assert (error.code, error.error_type, error.detail) == ("declined", "Declined", {"a": 1})
