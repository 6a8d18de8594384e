"""What the ledger and the journals prove together.

The ledger has a line for each time a step's function really began. The journals say which steps
were recorded as done, and in which order. A step may begin twice only if the process that had begun
it was killed before its result was journaled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyrula.workflows.stores.events import (
    AnyEvent,
    RunComplete,
    RunRequeued,
    StepDone,
    StepPending,
    UnknownEvent,
)

Journal = list[AnyEvent | UnknownEvent]
Step = tuple[str, str]  # run id, name


@dataclass(frozen=True, kw_only=True)
class Begin:
    """One line of the ledger; `at` is monotonic seconds, the same clock in every process."""

    at: float
    pid: int
    run_id: str
    step: str


@dataclass(frozen=True, kw_only=True)
class Kill:
    """Who was killed, and when: on the ledger's clock and, in ms, on the store's."""

    at: float
    store_ms: float
    pid: int


def read_ledger(folder: Path) -> list[Begin]:
    """All lines so far, oldest first."""
    begins: list[Begin] = []
    for line in Path(folder, "ledger").read_text().splitlines():
        at, pid, run_id, step = line.split(" ", 3)
        begins.append(Begin(at=float(at), pid=int(pid), run_id=run_id, step=step))
    return sorted(begins, key=lambda begin: begin.at)


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Figures, and every way in which a claim does not hold.

    For each run that lost its process, the seconds from the kill until it was queued again
    (`queued_s`) and until its next step in another process (`waits_s`); both ascending.
    """

    steps: int
    begins: int
    in_doubt: int
    queued_s: list[float]
    waits_s: list[float]
    violations: list[str]


def prove(journals: Mapping[str, Journal], begins: list[Begin], kill: Kill) -> Proof:
    """Hold the ledger against the journals."""
    times: dict[Step, list[Begin]] = defaultdict(list)
    for begin in begins:
        times[begin.run_id, begin.step].append(begin)
    violations = [problem for run, events in journals.items() for problem in _journal(run, events)]
    done = {step for run, events in journals.items() for step in _done(run, events)}
    violations += [f"{step} is journaled as done but never began" for step in done - times.keys()]
    violations += [f"{step} began but is not journaled" for step in times.keys() - done]
    repeated = {step: seen for step, seen in times.items() if len(seen) > 1}
    for step, seen in repeated.items():
        if len(seen) > 2 or seen[0].pid != kill.pid:
            violations.append(f"{step} began {len(seen)} times, in {[begin.pid for begin in seen]}")
    return Proof(
        steps=len(done),
        begins=len(begins),
        in_doubt=len(repeated),
        queued_s=sorted(
            (event.t - kill.store_ms) / 1_000
            for events in journals.values()
            for event in events
            if isinstance(event, RunRequeued)
        ),
        waits_s=sorted(_recovery(begins, kill)),
        violations=violations,
    )


def _journal(run_id: str, events: Journal) -> Iterable[str]:
    """What is wrong with one run's journal by itself."""
    if not events or not isinstance(events[-1], RunComplete):
        yield f"{run_id} has not completed"
    done: set[str] = set()
    for event in events:
        if isinstance(event, StepPending) and event.p in done:
            yield f"{run_id} began step {event.n!r} again after it was done"
        elif isinstance(event, StepDone):
            if event.p in done:
                yield f"{run_id} finished the step at {event.p} twice"
            done.add(event.p)


def _done(run_id: str, events: Journal) -> set[Step]:
    names = {event.p: event.n for event in events if isinstance(event, StepPending)}
    return {(run_id, names[event.p]) for event in events if isinstance(event, StepDone)}


def _recovery(begins: list[Begin], kill: Kill) -> list[float]:
    """For each run that lost its process in the middle: seconds until its next step elsewhere."""
    before = {begin.run_id for begin in begins if begin.pid == kill.pid}
    waits: dict[str, float] = {}
    for begin in begins:
        if begin.run_id in before and begin.pid != kill.pid and begin.at > kill.at:
            waits.setdefault(begin.run_id, begin.at - kill.at)
    return list(waits.values())
