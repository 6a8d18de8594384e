"""Telling the kernel's out-of-memory killer from a stranger's SIGKILL.

Owns the watch over our cgroup's `oom_kill` counter: a SIGKILL is an OOM kill only if the counter
rose at about that time, once per count. Without a memory cgroup nothing is ever said to be one.
"""

from __future__ import annotations

from collections import deque

from pyrula.supervisor import procfs

BELIEVED_FOR_S = 2.0  # a step's own subprocess may be the victim: its count must not wait for us


class OomWatch:
    """Call `look` on each tick; `explains` a death at most once per kill. Seconds are monotonic."""

    def __init__(self) -> None:
        self._seen = procfs.oom_kills() or 0
        self._kills: deque[float] = deque()

    def look(self, now: float) -> None:
        """Note new kills, forget old ones."""
        count = procfs.oom_kills()
        if count is None:
            return
        self._kills.extend([now] * (count - self._seen))
        self._seen = count
        while self._kills and now - self._kills[0] > BELIEVED_FOR_S:
            self._kills.popleft()

    def explains(self, now: float) -> bool:
        """Whether a child found dead of SIGKILL now was taken by the kernel."""
        self.look(now)
        if not self._kills:
            return False
        self._kills.popleft()
        return True
