"""How long the runs of a killed process stood still, as the ledger saw it.

Owns the arithmetic from a ledger and the times of the kills; pure. A run that was claimed
and hadn't begun a step is unknown to the ledger and isn't counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadtest.ledger import Entry


@dataclass(frozen=True, kw_only=True)
class Kill:
    """A process ended by SIGKILL at monotonic seconds `at`."""

    pid: int
    at: float


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """A run that was in flight in a killed process.

    `seconds` from the kill to its next step elsewhere; None if there was none.
    """

    run: str
    kill: Kill
    seconds: float | None


def recoveries(ledger: Sequence[Entry], kills: Sequence[Kill], last_step: str) -> list[Recovery]:
    """For each kill, the runs that were last seen in that process and hadn't ended.

    A run is taken as ended if the last that was seen of it is the end of `last_step`, unless it
    goes on elsewhere all the same: then the outcome of that step was lost with the process.
    """
    by_run: dict[str, list[Entry]] = {}
    for entry in sorted(ledger, key=lambda entry: entry.at):
        by_run.setdefault(entry.run, []).append(entry)
    return [
        recovery
        for kill in kills
        for run, entries in by_run.items()
        for recovery in _recovery(run, entries, kill, last_step)
    ]


def _recovery(run: str, entries: Sequence[Entry], kill: Kill, last_step: str) -> Iterator[Recovery]:
    before = [entry for entry in entries if entry.at <= kill.at]
    if not before or before[-1].pid != kill.pid:
        return
    after = (entry for entry in entries[len(before) :] if entry.pid != kill.pid)
    resumed = next(after, None)
    ended = before[-1].kind == "end" and before[-1].step == last_step
    if resumed is not None:
        yield Recovery(run=run, kill=kill, seconds=resumed.at - kill.at)
    elif not ended:
        yield Recovery(run=run, kill=kill, seconds=None)
