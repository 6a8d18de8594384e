"""What the engine needs from the world, as protocols.

Owns the seam between the pure engine and the worker: the journal bound to one lock, the thread pool
for sync steps, the estimate of store time, and where the executing step is published. Refuses to
implement any of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyrula.workflows.stores.base import AppendReply, ParkReply, Posted, Status
from pyrula.workflows.stores.seams import LoopSleeper, Sleeper


class Journal(Protocol):
    """One run's journal under one lock; raises as `stores.base.Store` does."""

    def post(self, first_seq: int, events: Sequence[bytes]) -> Posted:
        """Bytes are with the kernel on return; the answer need not be awaited."""
        ...

    def append(self, first_seq: int, events: Sequence[bytes]) -> Awaitable[AppendReply]:
        """Durable once awaited."""
        ...

    async def park(
        self, first_seq: int, events: Sequence[bytes], *, due_ms: int | None
    ) -> ParkReply:
        """Append, check, give the run up."""
        ...

    async def finish(self, first_seq: int, events: Sequence[bytes], *, status: Status) -> None:
        """Append the terminal event and end the run."""
        ...


class Attribution(Protocol):
    """Where the world outside can see which step executes."""

    def step_entered(self, path: str, name: str, timeout: float | None) -> None:
        """`step:pending` is with the kernel; the body's first instruction is next."""
        ...

    def step_left(self) -> None:
        """`step:done` was acknowledged (or the step failed)."""
        ...


class NoAttribution:
    """Nobody watches."""

    def step_entered(self, path: str, name: str, timeout: float | None) -> None:
        """Publish nothing."""

    def step_left(self) -> None:
        """Publish nothing."""


class SyncCalls(Protocol):
    """The pool in which sync steps run."""

    def __call__(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Awaitable[Any]:
        """Run `fn` in a thread; the awaitable gives its result."""
        ...


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on what a run may write. Sizes in bytes, `park_retry_s` in seconds."""

    payload_bytes: int = 1 << 20
    max_events: int = 50_000
    step_boundary_durability: bool = True
    event_buffer_size: int = 64
    park_retry_s: float = 5.0


def event_cap(wanted: int, maxlen: int) -> int:
    """The most events a run may have when the store keeps `maxlen` (≥ 3) of them.

    Leaves a margin of 1,000 or a tenth of `maxlen`, whichever is smaller, never under 2.

    >>> event_cap(50_000, 100_000), event_cap(50_000, 10_000), event_cap(50_000, 3)
    (50000, 9000, 1)
    """
    return min(wanted, maxlen - max(2, min(1_000, maxlen // 10)))


@dataclass(frozen=True, kw_only=True)
class Env:
    """All the engine may reach. `now_ms` estimates store time; it decides nothing.

    `lock_trusted` is false once the lock may have lapsed: no new step may begin then, since another
    worker may have gone on with the run while this process was stopped.
    """

    now_ms: Callable[[], int]
    call_sync: SyncCalls
    lock_trusted: Callable[[], bool] = lambda: True
    attribution: Attribution = field(default_factory=NoAttribution)
    limits: Limits = field(default_factory=Limits)
    sleeper: Sleeper = field(default_factory=LoopSleeper)
