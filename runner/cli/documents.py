"""Runs and events as JSON documents: what `--json` prints, and what tables are made of.

Owns the names of the fields that scripts rely on. Times are ISO 8601 in UTC.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from pyrula.workflows.cli.lookup import NumberedEvent
from pyrula.workflows.stores.base import RunInfo
from pyrula.workflows.stores.events import (
    AnyEvent,
    RunComplete,
    RunError,
    RunInit,
    UnknownEvent,
    kind_of,
    pack,
)

Document = dict[str, Any]


def run_document(info: RunInfo) -> Document:
    """What `runs list` tells of each run."""
    return {
        "run_id": info.ref.run_id,
        "workflow": info.ref.workflow,
        "status": info.status,
        "owner": info.owner,
        "created_at": iso(info.created_ms),
        "updated_at": iso(info.updated_ms),
        "due_at": iso(info.due_ms),
        "shard": info.ref.shard,
        "events": info.events,
        "lost": info.lost,
        "worker": info.incarnation,
    }


def full_document(info: RunInfo, events: Sequence[NumberedEvent]) -> Document:
    """What `runs show` tells: the run, its params, and its outcome once there is one."""
    document = run_document(info) | {"params": None, "result": None, "error": None}
    for _, event in events:
        if isinstance(event, RunInit):
            document["params"] = json.loads(bytes(event.params))
        elif isinstance(event, RunComplete):
            document["result"] = json.loads(bytes(event.result))
        elif isinstance(event, RunError):
            document["error"] = _error_document(event)
    return document


def event_document(seq: int, event: AnyEvent | UnknownEvent) -> Document:
    """One journal event: its number, kind and time, then its own fields."""
    raw = event.raw if isinstance(event, UnknownEvent) else pack(event)
    fields: Document = msgspec.json.decode(raw)
    stamped = {"seq": seq, "event": kind_of(event), "at": iso(event.t)}
    return stamped | {name: value for name, value in fields.items() if name not in {"e", "t"}}


def iso(ms: int | None) -> str | None:
    """Store milliseconds as text."""
    if ms is None:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def _error_document(event: RunError) -> Document:
    return {
        "code": event.code,
        "error_type": event.error_type,
        "message": event.message,
        "detail": event.detail or {},
    }
