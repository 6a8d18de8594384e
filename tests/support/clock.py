"""Time and chance that tests decide."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ManualClock:
    """A `Clock` that stands still until a test moves it; both hands move together."""

    now: float = 1_700_000_000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True)
class FixedRng:
    """An `Rng` that always draws the same."""

    value: float

    def random(self) -> float:
        return self.value
