"""What must hold of journals and ledger once everything is quiet (reliability.md, invariants).

Owns the rules V1, V2, V3, V4 and V7; pure, so that hand-made bad evidence proves that each rule can
fail. Refuses clocks: the order of a journal, the order of one process, and the execution that a
`step:done` names are enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from loadtest.ledger import Entry
from pyrula.workflows.stores.events import (
    EVENTS,
    AnyEvent,
    RunInit,
    RunRequeued,
    StepDone,
    StepError,
    StepPending,
    TimerFired,
    UnknownEvent,
    kind_of,
    unpack,
)

WAKING_S = 0.5
LATE = "late"  # a V3 counted apart: a start by a process that had just woken up


@dataclass(frozen=True, kw_only=True)
class Journal:
    """A run's journal as it was read: what the store says of it, and its events.

    `earlier` are reads of the same journal from before.
    """

    length: int
    trimmed: int
    events: Sequence[bytes]
    earlier: Sequence[Sequence[bytes]] = ()


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that is known afterwards.

    `accepted` are the runs whose submit was acknowledged; a run of them without a journal was lost.
    `resumed` are processes (pid, monotonic seconds) that went on after a SIGSTOP.
    """

    accepted: Sequence[str]
    journals: Mapping[str, Journal]
    ledger: Sequence[Entry]
    resumed: Sequence[tuple[int, float]] = ()

    def excuses(self, late: Entry) -> bool:
        """Whether the process had just woken up, and couldn't know yet that the run was gone.

        It could have the reply to an earlier step at hand. But the outcome of a step that ended
        after it woke up was refused, so nothing may follow from one.
        """
        ends = [
            entry.at
            for entry in self.ledger
            if (entry.run, entry.pid, entry.kind) == (late.run, late.pid, "end")
        ]
        return any(
            pid == late.pid
            and 0 <= late.at - at < WAKING_S
            and not any(at <= end <= late.at for end in ends)
            for pid, at in self.resumed
        )


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One rule broken by one run, and how; `LATE` is a V3 that a SIGSTOP explains."""

    rule: str
    run: str
    what: str


@dataclass(kw_only=True)
class Step:
    """What the journal of a run says of one step.

    `windows` are attempts lost while it may have been open; `outcomes` the executions recorded as
    done, None for a final error.
    """

    name: str
    windows: int = 0
    outcomes: list[str | None] = field(default_factory=list[str | None])


def check(evidence: Evidence) -> list[Violation]:
    """All violations, by run; none if everything holds."""
    starts = _starts(evidence.ledger)
    found: list[Violation] = []
    for run in sorted({*evidence.accepted, *evidence.journals}):
        journal = evidence.journals.get(run)
        if journal is None:
            found.append(Violation(rule="V7", run=run, what="accepted and gone"))
            continue
        events = [unpack(raw) for raw in journal.events]
        sentences = [
            *_ends(events),
            *(("V2", what) for what in _contiguous(journal, events)),
            *_effects(events, starts.pop(run, {}), evidence),
        ]
        found += [Violation(rule=rule, run=run, what=what) for rule, what in sentences]
    unknown = (Violation(rule="V7", run=run, what="ran without a journal") for run in starts)
    return [*found, *unknown]


def _ends(events: Sequence[AnyEvent | UnknownEvent]) -> Iterator[tuple[str, str]]:
    """V1 and V7: exactly one terminal event, nothing after it."""
    kinds = [kind_of(event) for event in events]
    ends = [number for number, kind in enumerate(kinds, 1) if _is_terminal(kind)]
    if not ends:
        last = kinds[-1] if kinds else "none"
        yield "V7", f"no terminal event; the last of {len(kinds)} is {last}"
    if len(ends) > 1:
        yield "V1", f"terminal events at {ends}"
    if ends and ends[0] != len(kinds):
        yield "V1", f"{len(kinds) - ends[0]} events after the first terminal one"


def _is_terminal(kind: str) -> bool:
    return kind in EVENTS and EVENTS[kind].terminal


def _contiguous(journal: Journal, events: Sequence[AnyEvent | UnknownEvent]) -> Iterator[str]:
    """V2: nothing is missing, nothing is there twice, nothing that was once read has changed."""
    if journal.trimmed or len(journal.events) != journal.length:
        yield f"{len(journal.events)} events read of {journal.length}, {journal.trimmed} trimmed"
    begins = [number for number, event in enumerate(events, 1) if isinstance(event, RunInit)]
    if begins != [1]:
        yield f"run:init at {begins}"
    if unknown := [event.kind for event in events if isinstance(event, UnknownEvent)]:
        yield f"unknown events {unknown}"
    for before in journal.earlier:
        if list(journal.events[: len(before)]) != list(before):
            yield f"a read of {len(before)} events is no prefix of the last one"


def _effects(
    events: Sequence[AnyEvent | UnknownEvent],
    starts: dict[str, list[Entry]],
    evidence: Evidence,
) -> Iterator[tuple[str, str]]:
    """V3 and V4: what the journal says of each step against what the ledger saw of it."""
    for step in _steps(events):
        started = starts.pop(step.name, [])
        if len(step.outcomes) > 1:
            yield "V3", f"{len(step.outcomes)} outcomes of step {step.name!r}"
        if len(started) > 1 + step.windows:
            times = f"{len(started)} times with {step.windows} attempts lost"
            yield "V4", f"step {step.name!r} ran {times}"
        for outcome in step.outcomes:
            if outcome is not None:
                yield from _done(step.name, outcome, started, evidence)
    for name in starts:
        yield "V3", f"step {name!r} ran and is not in the journal"


def _done(
    step: str, execution: str, started: Sequence[Entry], evidence: Evidence
) -> Iterator[tuple[str, str]]:
    """V3: after the execution that counts, none began.

    Its owner had the only valid token until the outcome was in the journal, so whoever was given
    the run afterwards was given the outcome too.
    """
    recorded = next((entry for entry in started if entry.execution == execution), None)
    if recorded is None:
        yield "V3", f"step {step!r} is done by {execution}, which the ledger doesn't know"
        return
    for again in started:
        if again.at > recorded.at:
            what = f"step {step!r} began again in {again.pid} after {execution} had done it"
            yield LATE if evidence.excuses(again) else "V3", what


def _steps(events: Sequence[AnyEvent | UnknownEvent]) -> list[Step]:
    """All steps of a journal.

    A step may have begun in an attempt whose `step:pending` never arrived; but then nothing that
    the attempt wrote later did. So its windows are counted from the last progress before it.
    """
    steps: dict[str, Step] = {}
    opened: dict[str, int] = {}
    requeues = requeues_before = 0
    for event in events:
        match event:
            case RunRequeued():
                requeues += 1
                for path, step in steps.items():
                    if not step.outcomes:
                        step.windows = requeues - opened[path]
            case StepPending() if event.p not in steps:
                opened[event.p] = requeues_before
                steps[event.p] = Step(name=event.n, windows=requeues - requeues_before)
            case StepDone() | StepError(final=True):
                step = steps.setdefault(event.p, Step(name=f"without pending: {event.p}"))
                step.outcomes.append(_execution(event) if isinstance(event, StepDone) else None)
                requeues_before = requeues
            case TimerFired():
                requeues_before = requeues
            case _:
                pass
    return list(steps.values())


def _execution(event: StepDone) -> str:
    return bytes(event.r).decode().strip('"')


def _starts(ledger: Sequence[Entry]) -> dict[str, dict[str, list[Entry]]]:
    """By run and step, the times that its body began."""
    found: dict[str, dict[str, list[Entry]]] = {}
    for entry in ledger:
        if entry.kind == "start":
            found.setdefault(entry.run, {}).setdefault(entry.step, []).append(entry)
    return found
