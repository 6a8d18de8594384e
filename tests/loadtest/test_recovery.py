from __future__ import annotations

from typing import Literal

from loadtest.ledger import Entry
from loadtest.recovery import Kill, recoveries

KILL = Kill(pid=1, at=10.0)


def seen(kind: Literal["start", "end"], step: str, pid: int, at: float, run: str = "r") -> Entry:
    return Entry(run=run, step=step, kind=kind, pid=pid, at=at, execution=f"{pid}:{at}")


def seconds(*ledger: Entry) -> list[float | None]:
    return [recovery.seconds for recovery in recoveries(ledger, [KILL], "last")]


def test_a_run_in_a_step_is_timed_to_its_next_step_elsewhere() -> None:
    assert seconds(seen("start", "a", 1, 9.9), seen("start", "a", 2, 10.25)) == [0.25]


def test_a_run_between_steps_was_in_flight_too() -> None:
    assert seconds(seen("end", "a", 1, 9.9), seen("start", "b", 2, 10.5)) == [0.5]


def test_a_run_that_never_goes_on_is_told() -> None:
    assert seconds(seen("start", "a", 1, 9.9)) == [None]


def test_a_run_that_had_ended_is_not_counted() -> None:
    assert seconds(seen("end", "last", 1, 9.9)) == []


def test_a_last_step_whose_outcome_was_lost_is_timed() -> None:
    assert seconds(seen("end", "last", 1, 9.9), seen("start", "last", 2, 10.5)) == [0.5]


def test_runs_of_other_processes_are_bystanders() -> None:
    assert seconds(seen("start", "a", 2, 9.9), seen("start", "b", 3, 10.5)) == []


def test_a_run_that_had_moved_on_before_the_kill_is_a_bystander() -> None:
    moved = (seen("start", "a", 1, 9.0), seen("start", "a", 2, 9.5), seen("start", "b", 2, 10.1))
    assert seconds(*moved) == []


def test_runs_are_told_apart() -> None:
    ledger = (seen("start", "a", 1, 9.0, "x"), seen("start", "a", 2, 10.5, "y"))
    assert seconds(*ledger) == [None]
