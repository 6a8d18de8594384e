"""The events table: every kind has one row, one shape, and a packed form that scripts rely on."""

from __future__ import annotations

import json

import pytest

from pyrula.workflows.stores.errors import JournalFormatError
from pyrula.workflows.stores.events import (
    EVENTS,
    AnyEvent,
    ErrorRecord,
    Raw,
    RunCancel,
    RunComplete,
    RunError,
    RunInit,
    RunRequeued,
    StepDone,
    StepError,
    StepPending,
    StreamOverflow,
    TimerFired,
    TimerSet,
    UnknownEvent,
    kind_of,
    pack,
    unpack,
)

ERROR = ErrorRecord(type="ValueError", message="no", code="c")
SAMPLES: list[AnyEvent] = [
    RunInit(t=5, name="w", params=Raw(b'{"a":[]}'), owner="acme", source={"run_id": "b"}),
    StepPending(t=5, p="0.1", n="charge", h="ab"),
    StepDone(t=5, p="0.1", r=Raw(b'{"x":9007199254740993}')),
    StepError(t=5, final=True, p="0", error=ERROR, tries=3),
    StepError(t=5, p="0", error=ERROR, retry_at=9),
    TimerSet(t=5, p="1", n="sleep", due=9),
    TimerFired(t=5, p="1"),
    RunRequeued(t=5, reason="worker_lost", lost=2, cause="killed"),
    RunCancel(t=5, by="engine", reason="r"),
    StreamOverflow(t=5, limit=10),
    RunComplete(t=5, result=Raw(b"[1e308,{}]")),
    RunError(t=5, code="c", error_type="E", message="m", detail={"k": [1]}),
]


def _names(events: list[AnyEvent]) -> list[str]:
    return [kind_of(event) for event in events]


def test_every_kind_of_the_table_has_a_sample() -> None:
    assert set(_names(SAMPLES)) == set(EVENTS)


@pytest.mark.parametrize("event", SAMPLES, ids=_names(SAMPLES))
def test_an_event_comes_back_as_it_was_packed(event: AnyEvent) -> None:
    packed = pack(event)
    assert unpack(packed) == event
    assert pack(unpack(packed)) == packed


@pytest.mark.parametrize("event", SAMPLES, ids=_names(SAMPLES))
def test_kind_and_time_come_first(event: AnyEvent) -> None:
    assert pack(event).startswith(b'{"e":"%s","t":5' % kind_of(event).encode())
    assert list(json.loads(pack(event)))[:2] == ["e", "t"]


def test_scripts_can_tell_progress_by_prefix() -> None:
    assert pack(StepDone(t=5, p="0")).startswith(b'{"e":"step:done"')
    final = pack(StepError(t=5, final=True, p="0", error=ERROR))
    assert final.startswith(b'{"e":"step:error","t":5,"final":true')
    assert b"final" not in pack(StepError(t=5, p="0", error=ERROR))


@pytest.mark.parametrize(
    "value", [b"[]", b"{}", b"9007199254740993", b"1e308", b"null", b'"\\u2028"']
)
def test_user_values_are_kept_byte_for_byte(value: bytes) -> None:
    event = unpack(pack(StepDone(t=5, p="0", r=Raw(value))))
    assert isinstance(event, StepDone)
    assert bytes(event.r) == value


def test_a_table_row_names_its_own_kind() -> None:
    for kind, spec in EVENTS.items():
        assert spec.kind == kind
        assert spec.struct.__struct_config__.tag == kind
        assert spec.struct.__doc__


def test_exactly_the_last_events_of_a_run_are_terminal() -> None:
    assert {kind for kind, spec in EVENTS.items() if spec.terminal} == {
        "run:complete",
        "run:error",
    }


def test_an_event_of_a_newer_build_is_kept_unread() -> None:
    raw = b'{"e":"signal:received","t":7,"deep":{"a":[1,2]}}'
    event = unpack(raw)
    assert event == UnknownEvent(kind="signal:received", t=7, raw=raw)
    assert kind_of(event) == "signal:received"


def test_a_field_of_a_newer_build_is_passed_over() -> None:
    assert unpack(b'{"e":"timer:fired","t":5,"p":"1","new":[{}]}') == TimerFired(t=5, p="1")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff",
        b"[]",
        b"nonsense",
        b'{"t":5}',
        b'{"e":5}',
        b'{"e":"step:done","t":5}',
        b'{"e":"step:done","t":"x","p":"0"}',
        b'{"e":"run:requeued","reason":"for fun"}',
        b'{"e":"run:init","t":1,"name":"w"',
    ],
)
def test_a_damaged_event_is_a_journal_format_error(raw: bytes) -> None:
    with pytest.raises(JournalFormatError) as damaged:
        unpack(raw)
    assert damaged.value.code == "journal_format"
