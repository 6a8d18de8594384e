"""From a journal to the state of its run.

Owns the one fold that worker, queries and tools share. `reconstruct_state` is pure;
`replay_all_events` pages a whole journal out of a store, bounded in bytes a page. Refuses to guess:
an unknown kind or a damaged event raises instead of being skipped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from pyrula.workflows.stores.base import RunRef, Store
from pyrula.workflows.stores.errors import (
    IncompatibleUpgradeError,
    RunNotFoundError,
    TruncatedHistoryError,
)
from pyrula.workflows.stores.events import (
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
    unpack,
)


@dataclass(slots=True)
class CallRecord:
    """What the journal knows of one context call.

    `settled_ms` is the store time at which its outcome was journaled, None while there is none.
    """

    path: str
    kind: Literal["step", "timer"]
    name: str
    inputs: str
    result: Raw | None = None
    error: ErrorRecord | None = None
    due_ms: int | None = None
    tries: int = 0
    settled_ms: int | None = None


@dataclass(slots=True)
class ReplayState:
    """A folded journal: how the run began, its calls by path, and whether it ended.

    `length` is the sequence of the last event and `last_ms` its store time.
    """

    init: RunInit | None = None
    calls: dict[str, CallRecord] = field(default_factory=dict[str, CallRecord])
    cancelled: bool = False
    terminal: RunComplete | RunError | None = None
    requeues: int = 0
    length: int = 0
    last_ms: int = 0

    @property
    def in_doubt(self) -> list[CallRecord]:
        """Steps that started and have no recorded outcome; they run again."""
        return [c for c in self.calls.values() if c.kind == "step" and c.settled_ms is None]


def reconstruct_state(
    events: Iterable[AnyEvent | UnknownEvent], onto: ReplayState | None = None
) -> ReplayState:
    """Fold `events`, in order and from the first, into a `ReplayState`.

    With `onto`, the state of the events before, folding goes on there. Raises
    `IncompatibleUpgradeError` for an event of a newer build.

    >>> reconstruct_state([]).length
    0
    """
    state = onto or ReplayState()
    for event in events:
        state.length += 1
        state.last_ms = max(state.last_ms, event.t)
        _apply(state, event)
    return state


async def replay_all_events(
    store: Store, name: str, run_id: str, *, page_bytes: int = 8 << 20
) -> list[AnyEvent | UnknownEvent]:
    """The full journal of a run, read in pages of at most `page_bytes` bytes.

    Raises `RunNotFoundError`, or `TruncatedHistoryError` when the oldest events were trimmed.
    """
    ref = await _where(store, name, run_id)
    events: list[AnyEvent | UnknownEvent] = []
    while True:
        page = await store.read_journal(ref, len(events) + 1, max_bytes=page_bytes)
        if page.trimmed:
            raise TruncatedHistoryError(
                f"expected the whole history of run {run_id}, found {page.trimmed} of its oldest "
                "events trimmed; raise the store's maxlen, or split the work into several runs",
                detail={"missing": page.trimmed},
            )
        events.extend(unpack(raw) for raw in page.events)
        if not page.events or len(events) >= page.length:
            return events


async def _where(store: Store, name: str, run_id: str) -> RunRef:
    for ref in await store.find(run_id):
        if ref.workflow == name:
            return ref
    raise RunNotFoundError(
        f"expected a run {run_id} of workflow {name!r}, found none; it was never submitted, or has "
        "expired"
    )


def _apply(state: ReplayState, event: AnyEvent | UnknownEvent) -> None:
    match event:
        case StepPending():
            _begin_step(state, event)
        case StepDone():
            _settle(state, event).result = event.r
        case StepError():
            _fail_step(state, event)
        case TimerSet():
            state.calls[event.p] = CallRecord(event.p, "timer", event.n, "", due_ms=event.due)
        case TimerFired():
            _settle(state, event)
        case RunInit():
            state.init = event
        case RunRequeued():
            state.requeues += 1
        case RunCancel():
            state.cancelled = True
        case RunComplete() | RunError():
            state.terminal = event
        case StreamOverflow():
            pass
        case UnknownEvent():
            raise IncompatibleUpgradeError(
                f"expected events that this build knows, found {event.kind!r} at sequence "
                f"{state.length}; a newer build wrote it: deploy that build to this worker"
            )


def _begin_step(state: ReplayState, event: StepPending) -> None:
    before = state.calls.get(event.p)
    if before is None or before.kind != "step":
        state.calls[event.p] = CallRecord(event.p, "step", event.n, event.h)


def _settle(state: ReplayState, event: StepDone | StepError | TimerFired) -> CallRecord:
    record = state.calls.get(event.p)
    if record is None:
        raise IncompatibleUpgradeError(
            f"expected an event that opens call {event.p} before its outcome, found none before "
            f"sequence {state.length}; the journal is damaged"
        )
    record.settled_ms = event.t
    return record


def _fail_step(state: ReplayState, event: StepError) -> None:
    if event.final:
        record = _settle(state, event)
        record.error, record.tries = event.error, event.tries
        return
    open_call = state.calls.get(event.p)
    # A retry that parked goes on where it was; one that didn't re-runs the whole step.
    if open_call is not None and event.retry_at is not None:
        open_call.tries, open_call.due_ms = event.tries, event.retry_at
