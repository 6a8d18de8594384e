"""Transitions that nobody owns: due timers, missed renewals, deaths, expired runs.

Owns the two looks (protocol.md 10), the settlement of a death (22) and what a loss counts (21). All
of them may be repeated by anyone, half done or twice. Refuses to touch a run whose lock is alive,
except in the settlement of its dead owner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from pyrula.workflows.stores.base import Fired, Scanned, Settled
from pyrula.workflows.stores.events import RunRequeued, pack
from pyrula.workflows.stores.memory.owning import send_back
from pyrula.workflows.stores.memory.records import Run, Shard

TOMBSTONE_MS = 600_000  # requests of the dead can arrive long after its settlement

Jitter = Callable[[], float]


def fire_timers(shard: Shard, *, limit: int, now: int) -> Fired:
    """Make due runs claimable, earliest first."""
    due = sorted((at, run_id) for run_id, at in shard.timers.items() if at <= now)[:limit]
    for _, run_id in due:
        shard.enqueue(shard.runs[run_id], now)
    if due:
        shard.wake_one(now)
    return Fired(count=len(due), next_due_ms=min(shard.timers.values(), default=None), now_ms=now)


def scan_orphans(
    shard: Shard, *, lock_ttl_ms: int, limit: int, jitter: Jitter, now: int
) -> Scanned:
    """Requeue suspects that were not renewed, then suspect those that missed a renewal."""
    third = lock_ttl_ms // 3
    ripe = [run_id for run_id, at in shard.suspects.items() if at + third <= now][:limit]
    lapsed = [run_id for run_id in ripe if shard.running[run_id] <= now]
    for run_id in lapsed:
        _lose(shard, shard.runs[run_id], counts=True, cause=None, jitter=jitter, now=now)
    late = sorted(
        (expires, run_id)
        for run_id, expires in shard.running.items()
        if expires - now <= third and run_id not in shard.suspects
    )[:limit]
    for _, run_id in late:
        shard.suspects[run_id] = now
    looks = [at + third - now for at in shard.suspects.values()]
    return Scanned(
        suspected=len(late),
        requeued=len(lapsed),
        look_again_ms=max(0, min(looks)) if looks else None,
    )


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
    shard.claims.pop(incarnation, None)
    theirs = sorted(shard.held.get(incarnation, ()))
    for run_id in theirs[:limit]:
        counts = lost is None or run_id in lost
        _lose(shard, shard.runs[run_id], counts=counts, cause=cause, jitter=jitter, now=now)
    return Settled(requeued=len(theirs[:limit]), more=len(theirs) > limit)


def recover_pending(shard: Shard, *, jitter: Jitter, now: int) -> int:
    """Requeue everything whose lock has lapsed, without a second look."""
    lapsed = sorted(run_id for run_id, expires in shard.running.items() if expires <= now)
    for run_id in lapsed:
        _lose(shard, shard.runs[run_id], counts=True, cause=None, jitter=jitter, now=now)
    return len(lapsed)


def sweep(shard: Shard, *, limit: int, now: int) -> int:
    """Forget runs that ended `completed_ttl` ago."""
    expired = [run_id for run_id, until in shard.done.items() if until <= now][:limit]
    for run_id in expired:
        del shard.done[run_id], shard.runs[run_id]
    return len(expired)


def _lose(
    shard: Shard, run: Run, *, counts: bool, cause: str | None, jitter: Jitter, now: int
) -> None:
    # A loss that doesn't count was nobody's fault of this run, so it doesn't wait for it either.
    run.note_progress()
    run.lost += counts
    event = RunRequeued(t=now, reason="worker_lost", lost=run.lost, cause=cause)
    run.journal.append(pack(event))
    shard.unlock(run)
    send_back(shard, run, jitter=jitter() if counts else None, now=now)
