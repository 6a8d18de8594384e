"""A count that worker processes raise and the benchmark reads, without a byte over any socket.

Owns one memory-mapped file: a 64-bit counter for each process slot, one writer each.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

VARIABLE = "PYRULA_BENCH_TALLY"  # "<path>:<slot>"
SLOTS = 64


class Tally:
    """All slots of the file, made if it isn't there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.write_bytes(bytes(8 * SLOTS))
        with path.open("r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 8 * SLOTS)).cast("Q")

    def total(self) -> int:
        """What all processes have counted."""
        return sum(self._words)

    def add(self, slot: int) -> None:
        """Count one in a slot that only the caller writes."""
        self._words[slot] += 1

    def environment(self, slot: int) -> dict[str, str]:
        """The variable that lends `slot` to a process."""
        return {VARIABLE: f"{self.path}:{slot}"}


class Counter:
    """This process's slot, as its environment names it; counts nothing without one."""

    def __init__(self) -> None:
        path, _, slot = os.environ.get(VARIABLE, "").rpartition(":")
        self._slot = int(slot) if path else 0
        self._tally = Tally(Path(path)) if path else None

    def add(self) -> None:
        """Count one."""
        if self._tally is not None:
            self._tally.add(self._slot)
