"""The ledger: an append-only file outside the system, in which steps record what they did.

Owns the form of a line and the one write that adds it. Times are of this machine's monotonic
clock, so lines of different processes can be compared. Refuses to buffer: a process that is killed
after `record` has returned has left its line behind.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

VARIABLE = "PYRULA_SOAK_LEDGER"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A step's body began or ended; `at` in monotonic seconds.

    `execution` is unique for each time that a body runs, and is also the step's result: so a
    `step:done` tells which of several executions it records.
    """

    run: str
    step: str
    kind: Literal["start", "end"]
    pid: int
    at: float
    execution: str


class Ledger:
    """The file that this process's environment names."""

    def __init__(self) -> None:
        # Opened at the first line: the module is imported by the driver too, which writes none.
        self._descriptor: int | None = None

    def begin(self, run: str, step: str) -> str:
        """Record that a body begins; gives the name of this execution."""
        execution = f"{os.getpid()}:{time.monotonic_ns()}"
        self._record(run, step, "start", execution)
        return execution

    def end(self, run: str, step: str, execution: str) -> None:
        """Record that a body is about to return."""
        self._record(run, step, "end", execution)

    def _record(self, run: str, step: str, kind: str, execution: str) -> None:
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(os.environ[VARIABLE], flags, 0o600)
        line = json.dumps([run, step, kind, os.getpid(), time.monotonic(), execution])
        # One write: a line is there as a whole or not at all.
        os.write(self._descriptor, line.encode() + b"\n")


def read(path: Path) -> list[Entry]:
    """All lines in the order in which they were written; none if nothing was."""
    if not path.exists():
        return []
    entries: list[Entry] = []
    for line in path.read_text().splitlines():
        run, step, kind, pid, at, execution = json.loads(line)
        entries.append(Entry(run=run, step=step, kind=kind, pid=pid, at=at, execution=execution))
    return entries


def repeated(entries: Sequence[Entry]) -> int:
    """How many times a body began that had begun before."""
    starts = [(entry.run, entry.step) for entry in entries if entry.kind == "start"]
    return len(starts) - len(set(starts))
