"""How many runs this worker may have in flight.

Owns one number across all workflows. A claim reserves before it asks, so that a reply never brings
more than there is room for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Slots:
    """`total` places; `on_free` callbacks run when one is given back."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._taken = 0
        self._on_free: deque[Callable[[], None]] = deque()

    @property
    def free(self) -> int:
        """Places nobody holds or has reserved."""
        return self.total - self._taken

    def reserve(self, count: int) -> int:
        """Take up to `count` places; returns how many were taken."""
        taken = max(0, min(count, self.free))
        self._taken += taken
        return taken

    def release(self, count: int = 1) -> None:
        """Give places back."""
        self._taken -= count
        if count:
            # Another one is called first each time: no workflow's backlog takes every place.
            self._on_free.rotate(1)
            for callback in self._on_free:
                callback()

    def on_free(self, callback: Callable[[], None]) -> None:
        """Call `callback` at each release."""
        self._on_free.append(callback)
