"""The seams: every source of time, chance, identity and threads that the floors above may use.

Owns the protocols and their real implementations. Engine, worker and shards reach for the outside
world only through these, so that a simulation can run a whole fleet on virtual time. A lint gate
refuses `time`, `random`, `uuid`, `threading` and `asyncio.sleep` elsewhere on those floors.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


class Clock(Protocol):
    """Time as this process knows it. Store time comes from the store, never from here."""

    def monotonic(self) -> float:
        """Seconds that never go back; for durations and for trusting sooner."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch; for people to read, decides nothing."""
        ...


class Sleeper(Protocol):
    """Waiting on the event loop."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        ...


class Rng(Protocol):
    """Chance for jitter and random choice; never for tokens."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...


class Ids(Protocol):
    """Fresh identities that nobody can guess."""

    def token(self) -> str:
        """128 random bits as 32 hex digits."""
        ...


class Spawner(Protocol):
    """Threads of our own."""

    def spawn(self, name: str, target: Callable[[], None]) -> threading.Thread:
        """Start a daemon thread named `name` that runs `target`."""
        ...

    def flag(self) -> threading.Event:
        """A flag that threads wait on, with a timeout in seconds."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()


class LoopSleeper:
    """`asyncio.sleep`, the one place that calls it."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)


class SystemIds:
    """Identities from the operating system's randomness."""

    def token(self) -> str:
        """128 random bits as 32 hex digits."""
        return secrets.token_hex(16)


class ThreadSpawner:
    """Daemon threads: a hung one never delays the exit of the process."""

    def spawn(self, name: str, target: Callable[[], None]) -> threading.Thread:
        """Start a daemon thread named `name` that runs `target`."""
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def flag(self) -> threading.Event:
        """A flag that threads wait on, with a timeout in seconds."""
        return threading.Event()


def _rng() -> Rng:
    return random.Random(os.urandom(16))


@dataclass(frozen=True, kw_only=True)
class Seams:
    """All seams in one value, handed down from the outermost floor.

    >>> Seams().clock.monotonic() > 0
    True
    """

    clock: Clock = field(default_factory=SystemClock)
    sleeper: Sleeper = field(default_factory=LoopSleeper)
    rng: Rng = field(default_factory=_rng)
    ids: Ids = field(default_factory=SystemIds)
    spawner: Spawner = field(default_factory=ThreadSpawner)
