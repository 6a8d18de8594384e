"""An estimate of store time between replies.

Owns one offset, set from the time that came with a claim. It stamps events and computes due times;
whether something is due is always decided by the store.
"""

from __future__ import annotations

from pyrula.workflows.stores.seams import Clock


class StoreClock:
    """Store time in ms, counted on by the local monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._offset_ms = clock.wall() * 1000 - clock.monotonic() * 1000

    def heard(self, now_ms: int) -> None:
        """A reply carried the store's time."""
        self._offset_ms = now_ms - self._monotonic() * 1000

    def now_ms(self) -> int:
        """The estimate."""
        return int(self._monotonic() * 1000 + self._offset_ms)
