"""Transitions that nobody owns: due timers, missed renewals, deaths, expired runs.

Owns the two looks (protocol.md 10), the settlement of a death (22) and what a loss counts (21). All
of them may be repeated by anyone, half done or twice. Refuses to touch a run whose lock is alive,
except in the settlement of its dead owner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from pyrula.workflows.stores.base import Fired, Scanned, Settled
from pyrula.workflows.stores.events import RunRequeued, pack
from pyrula.workflows.stores.memory.owning import give_back
from pyrula.workflows.stores.memory.records import Shard

TOMBSTONE_MS = 600_000  # requests of the dead can arrive long after its settlement

Jitter = Callable[[], float]


def fire_timers(shard: Shard, *, limit: int, now: int) -> Fired:
    """Make due runs claimable, earliest first."""
    due = sorted((at, run_id) for run_id, at in shard.timers.items() if at <= now)[:limit]
    for _, run_id in due:
        shard.enqueue(shard.runs[run_id], now)
    shard.wake(len(due), now)
    return Fired(count=len(due), next_due_ms=min(shard.timers.values(), default=None), now_ms=now)


def scan_orphans(
    shard: Shard, *, lock_ttl_ms: int, limit: int, jitter: Jitter, now: int
) -> Scanned:
    """Requeue suspects that lapsed without a renewal, then suspect those that missed one."""
    third = lock_ttl_ms // 3
    ripe = [run_id for run_id in shard.suspects if _ripe_at(shard, run_id, third) <= now][:limit]
    _lose(shard, ripe, jitter=jitter, now=now)
    late = [
        run_id
        for run_id, expires in shard.running.items()
        if expires - now <= third and run_id not in shard.suspects
    ]
    for run_id in late:
        shard.suspects[run_id] = now
    looks = [_ripe_at(shard, run_id, third) - now for run_id in shard.suspects]
    return Scanned(
        suspected=len(late),
        requeued=len(ripe),
        look_again_ms=max(1, min(looks)) if looks else None,
    )


def _ripe_at(shard: Shard, run_id: str, third: int) -> int:
    return max(shard.running[run_id], shard.suspects[run_id] + third)


def settle_death(
    shard: Shard,
    *,
    incarnation: str,
    cause: str,
    lost: Collection[str] | None,
    limit: int,
    jitter: Jitter,
    now: int,
) -> Settled:
    """Bury the incarnation, then hand on what it held."""
    shard.tombs[incarnation] = now + TOMBSTONE_MS
    shard.hungry.pop(incarnation, None)
    theirs = sorted(shard.held.get(incarnation, ()))
    _lose(shard, theirs[:limit], blamed=lost, cause=cause, jitter=jitter, now=now)
    return Settled(requeued=len(theirs[:limit]), more=len(theirs) > limit)


def recover_pending(shard: Shard, *, jitter: Jitter, now: int) -> int:
    """Requeue everything whose lock has lapsed, without a second look."""
    lapsed = sorted(run_id for run_id, expires in shard.running.items() if expires <= now)
    _lose(shard, lapsed, jitter=jitter, now=now)
    return len(lapsed)


def sweep(shard: Shard, *, limit: int, now: int) -> int:
    """Forget runs that ended `completed_ttl` ago."""
    expired = [run_id for run_id, until in shard.done.items() if until <= now][:limit]
    for run_id in expired:
        del shard.done[run_id], shard.runs[run_id]
    return len(expired)


def _lose(
    shard: Shard,
    run_ids: Sequence[str],
    *,
    blamed: Collection[str] | None = None,
    cause: str | None = None,
    jitter: Jitter,
    now: int,
) -> None:
    claimable = 0
    for run_id in run_ids:
        run = shard.runs[run_id]
        counts = blamed is None or run_id in blamed
        # A loss that doesn't count was not this run's doing, so it doesn't wait for it either.
        pause = jitter() if counts else None
        claimable += give_back(shard, run, "taken", loss=int(counts), jitter=pause, now=now)
        event = RunRequeued(t=now, reason="worker_lost", lost=run.lost, cause=cause)
        run.journal.append(pack(event))
    shard.wake(claimable, now)
