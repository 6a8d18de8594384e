"""When a dead child is replaced, and when dying has become a loop.

Owns pure arithmetic on monotonic seconds handed in: a backoff per slot and a sliding window over
unexpected exits of the whole pool. Refuses to sleep or to fork.
"""

from __future__ import annotations

from collections import deque

FIRST_S = 0.1
CAP_S = 30.0
RESET_AFTER_READY_S = 60.0
WINDOW_S = 60.0


class Backoff:
    """The delay before a slot's next fork: 0.1 s doubling to 30 s, full jitter."""

    def __init__(self) -> None:
        self._failures = 0

    def failed(self, ready_for_s: float, chance: float, *, capped: bool = False) -> float:
        """Seconds to wait after an unexpected exit; `chance` in [0, 1) is the jitter."""
        if ready_for_s >= RESET_AFTER_READY_S:
            self._failures = 0
        delay = CAP_S if capped else min(CAP_S, FIRST_S * 2**self._failures)
        self._failures = min(self._failures + 1, 20)
        return delay * (0.5 + chance / 2 if capped else chance)


class CrashWindow:
    """Whether more than max(3, 2N) unexpected exits fell into 60 s."""

    def __init__(self, procs: int) -> None:
        self._limit = max(3, 2 * procs)
        self._exits: deque[float] = deque()
        self.looping_since: float | None = None

    def exited(self, now: float) -> bool:
        """Count an unexpected exit; whether the pool is in a crash loop."""
        self._exits.append(now)
        return self.looping(now)

    def looping(self, now: float) -> bool:
        """Whether the pool is in a crash loop now."""
        while self._exits and now - self._exits[0] > WINDOW_S:
            self._exits.popleft()
        if len(self._exits) <= self._limit:
            self.looping_since = None
            return False
        if self.looping_since is None:
            self.looping_since = now
        return True
