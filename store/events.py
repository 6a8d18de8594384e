"""Journal events: one table of every kind, its fields, who writes it and what it means.

Owns the packed form of the journal. An event is a JSON object whose first key `e` is its kind and
whose second, `t`, is store time in milliseconds; scripts rely on that order to recognise progress
without decoding user payloads. User values are embedded as raw JSON and never looked into here.

Refuses to give events meaning: replay does that (`runner/engine`).

A reader that meets a kind it doesn't know gets an `UnknownEvent`: listings show it, replay refuses
it with `incompatible_upgrade`, because skipping what a newer build recorded could re-run a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from pyrula.workflows.stores.errors import JournalFormatError

Raw = msgspec.Raw
NULL = Raw(b"null")


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="e", omit_defaults=True):
    """What all events share: `t`, the store time in ms at which it was packed."""

    t: int = 0


class RunInit(Event, frozen=True, kw_only=True, tag="run:init"):
    """The run exists. `params` is a JSON object of keyword arguments."""

    name: str
    params: Raw
    trigger: str = "api"
    run_kind: str = "workflow"
    owner: str | None = None
    parent_run_id: str | None = None
    attempt: int = 1
    source: dict[str, Any] | None = None


class StepPending(Event, frozen=True, kw_only=True, tag="step:pending"):
    """A step is about to run: `p` is its structural path, `h` the hash of its inputs."""

    p: str
    n: str
    h: str


class StepDone(Event, frozen=True, kw_only=True, tag="step:done"):
    """The step at path `p` succeeded with result `r`."""

    p: str
    r: Raw = NULL


class ErrorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An exception as data; the stored type name is shown, never imported."""

    type: str
    message: str
    code: str | None = None


class StepError(Event, frozen=True, kw_only=True, tag="step:error"):
    """A try of the step failed. Only a `final` one reaches the body and counts as progress."""

    # Scripts look for `"final":true` right behind `t`: keep it the first field.
    final: bool = False
    p: str
    error: ErrorRecord
    tries: int = 1
    retry_at: int | None = None


class TimerSet(Event, frozen=True, kw_only=True, tag="timer:set"):
    """A sleep began at path `p`; it ends at store time `due` (ms)."""

    p: str
    n: str
    due: int


class TimerFired(Event, frozen=True, kw_only=True, tag="timer:fired"):
    """The sleep at path `p` is over."""

    p: str


RequeueReason = Literal["store_unavailable", "worker_lost", "loop_blocked", "stood_down", "drained"]


class RunRequeued(Event, frozen=True, kw_only=True, tag="run:requeued"):
    """An attempt was lost. `count` are charges, `lost` losses without progress."""

    reason: RequeueReason
    charged: bool = False
    count: int = 0
    lost: int = 0
    cause: str | None = None


class RunCancel(Event, frozen=True, kw_only=True, tag="run:cancel"):
    """The owner saw the latched cancel; the terminal event follows."""

    by: Literal["caller", "engine"] = "caller"
    reason: str | None = None


class StreamOverflow(Event, frozen=True, kw_only=True, tag="stream:overflow"):
    """The event-count cap was reached; `run:error` `stream_too_large` follows."""

    limit: int


class RunComplete(Event, frozen=True, kw_only=True, tag="run:complete"):
    """The body returned `result`."""

    result: Raw = NULL


class RunError(Event, frozen=True, kw_only=True, tag="run:error"):
    """The run ended in error; `code` is stable, `error_type` names the exception's type."""

    code: str
    error_type: str
    message: str
    detail: dict[str, Any] | None = None


class UnknownEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a kind that this build doesn't know, kept as it was stored."""

    kind: str
    t: int
    raw: bytes


AnyEvent = (
    RunInit
    | StepPending
    | StepDone
    | StepError
    | TimerSet
    | TimerFired
    | RunRequeued
    | RunCancel
    | StreamOverflow
    | RunComplete
    | RunError
)
Writer = Literal["submitter", "owner", "owner or script"]


@dataclass(frozen=True, kw_only=True)
class EventSpec:
    """One row of the table: who writes the kind, and what reading it implies."""

    kind: str
    struct: type[Event]
    writer: Writer
    terminal: bool = False
    critical: bool = True  # spooled until acknowledged by a delivery target; else best-effort


def _table(*rows: EventSpec) -> dict[str, EventSpec]:
    return {row.kind: row for row in rows}


EVENTS: dict[str, EventSpec] = _table(
    EventSpec(kind="run:init", struct=RunInit, writer="submitter"),
    EventSpec(kind="step:pending", struct=StepPending, writer="owner", critical=False),
    EventSpec(kind="step:done", struct=StepDone, writer="owner"),
    EventSpec(kind="step:error", struct=StepError, writer="owner"),
    EventSpec(kind="timer:set", struct=TimerSet, writer="owner"),
    EventSpec(kind="timer:fired", struct=TimerFired, writer="owner"),
    EventSpec(kind="run:requeued", struct=RunRequeued, writer="owner or script"),
    EventSpec(kind="run:cancel", struct=RunCancel, writer="owner"),
    EventSpec(kind="stream:overflow", struct=StreamOverflow, writer="owner"),
    EventSpec(kind="run:complete", struct=RunComplete, writer="owner", terminal=True),
    EventSpec(kind="run:error", struct=RunError, writer="owner or script", terminal=True),
)


class _Header(msgspec.Struct, frozen=True):
    e: str
    t: int = 0


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEvent)
_header_decoder = msgspec.json.Decoder(_Header)

pack = _encoder.encode


def unpack(raw: bytes) -> AnyEvent | UnknownEvent:
    """Decode one stored event.

    Raises `JournalFormatError` when a known kind has a broken body or `raw` is no event at all.

    >>> unpack(b'{"e":"timer:fired","t":5,"p":"0"}').p
    '0'
    """
    try:
        return _decoder.decode(raw)
    except msgspec.ValidationError as error:
        header = _read_header(raw)
        if header.e in EVENTS:
            raise JournalFormatError(
                f"expected a well-formed {header.e} event, found one that breaks its schema "
                f"({error}); the journal is damaged or was written by an incompatible build"
            ) from error
        return UnknownEvent(kind=header.e, t=header.t, raw=raw)
    except msgspec.DecodeError as error:
        raise _not_an_event(error) from error


def kind_of(event: AnyEvent | UnknownEvent) -> str:
    """The event's kind as the journal spells it, such as `step:done`."""
    if isinstance(event, UnknownEvent):
        return event.kind
    return str(event.__struct_config__.tag)


def _read_header(raw: bytes) -> _Header:
    try:
        return _header_decoder.decode(raw)
    except msgspec.MsgspecError as error:
        raise _not_an_event(error) from error


def _not_an_event(error: Exception) -> JournalFormatError:
    return JournalFormatError(
        f"expected a JSON object with the event's kind in `e`, found something else ({error}); "
        "the journal is damaged"
    )
