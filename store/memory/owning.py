"""Transitions around ownership: claim, append, park, requeue, finish, renew.

Owns the fencing rule: whoever writes shows the run's current token, compared for equality, or is
refused with `TokenRefused` before anything is written. A call that gave the lock up and is repeated
because its answer got lost is recognised by the token it gave up. Refuses to look at time other
than the `now` of the transition.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from pyrula.workflows.stores.base import (
    AppendReply,
    Claimed,
    ClaimReply,
    ClaimRequest,
    Flag,
    Lock,
    ParkReply,
    RenewReply,
    Status,
)
from pyrula.workflows.stores.errors import JournalRolledBack, TokenRefused
from pyrula.workflows.stores.memory.records import LastClaim, Release, Run, Shard

SMALL_TERMINAL = 4_096  # bytes; a larger last event is fetched, not sent along with the hint


def claim(shard: Shard, request: ClaimRequest, now: int) -> ClaimReply:
    """Hand out the oldest claimable runs, or the same answer as before to the same `n`."""
    if shard.is_dead(request.incarnation, now):
        raise TokenRefused(
            f"expected a claim of a live member, found one of {request.incarnation}, "
            "which was buried; stop this process",
            code="member_dead",
        )
    last = shard.claims.get(request.incarnation)
    if last and request.n < last.n:
        raise TokenRefused(
            f"expected claim {last.n} or a later one, found {request.n}; drop this stale answer",
            code="stale_claim",
        )
    if last is None or request.n > last.n:
        last = LastClaim(n=request.n, taken=_take(shard, request, now))
        shard.claims[request.incarnation] = last
        shard.hungry.pop(request.incarnation, None)
        if len(last.taken) < request.limit:
            shard.hungry[request.incarnation] = now + request.hungry_ms
    return ClaimReply(runs=_describe(shard, request, last), now_ms=now)


def _take(shard: Shard, request: ClaimRequest, now: int) -> list[tuple[str, str]]:
    taken: list[tuple[str, str]] = []
    while shard.queue and len(taken) < request.limit:
        _, run_id = heapq.heappop(shard.queue)
        run = shard.runs[run_id]
        shard.lock(run, request.incarnation, request.nonce, now + request.lock_ttl_ms, now)
        taken.append((run_id, run.token))
    return taken


def _describe(shard: Shard, request: ClaimRequest, last: LastClaim) -> list[Claimed]:
    budget = request.byte_budget
    claimed: list[Claimed] = []
    for run_id, token in last.taken:
        run = shard.runs.get(run_id)
        if run is None or run.token != token:
            continue  # a repeated claim: lost meanwhile, so there is nothing left to own
        page = _first_events(run, budget)
        budget -= sum(map(len, page))
        claimed.append(
            Claimed(
                lock=Lock(
                    ref=run.ref, token=token, epoch=run.epoch, incarnation=request.incarnation
                ),
                page=page,
                length=run.length,
                trimmed=run.trimmed,
                flags=run.flags,
                lost=run.lost,
            )
        )
    return claimed


def _first_events(run: Run, budget: int) -> list[bytes]:
    page: list[bytes] = []
    for event in run.journal:
        budget -= len(event)
        if budget < 0:
            break
        page.append(event)
    return page


def append(
    shard: Shard, lock: Lock, first_seq: int, events: Sequence[bytes], *, maxlen: int
) -> AppendReply:
    """Write what is not there yet; see `Store.append`."""
    run = _owned(shard, lock)
    _write(run, first_seq, events, maxlen)
    return AppendReply(run.length, run.flags)


def park(
    shard: Shard,
    lock: Lock,
    first_seq: int,
    events: Sequence[bytes],
    *,
    due_ms: int | None,
    maxlen: int,
    now: int,
) -> ParkReply:
    """Give the run up until something happens, unless it has happened already."""
    if _repeats(shard, lock, "park"):
        return ParkReply(outcome="parked", now_ms=now)
    run = _owned(shard, lock)
    _write(run, first_seq, events, maxlen)
    if run.flags & Flag.CANCEL:
        return ParkReply(outcome="cancel", now_ms=now)
    if due_ms is not None and due_ms <= now:
        return ParkReply(outcome="due", now_ms=now)
    run.forgive()
    shard.unlock(run, "park")
    if due_ms is None:
        run.status = "waiting"
        run.updated_ms = now
    else:
        shard.postpone(run, due_ms, "sleeping", now)
    return ParkReply(outcome="parked", now_ms=now)


def requeue(
    shard: Shard,
    lock: Lock,
    first_seq: int,
    events: Sequence[bytes],
    *,
    backoff: bool,
    jitter: float,
    maxlen: int,
    now: int,
) -> bool:
    """Give the run up to whoever claims next."""
    if _repeats(shard, lock, "requeue"):
        return True
    try:
        run = _owned(shard, lock)
        _write(run, first_seq, events, maxlen)
    except (TokenRefused, JournalRolledBack):
        return False
    claimable = give_back(shard, run, "requeue", jitter=jitter if backoff else None, now=now)
    shard.wake(claimable, now)
    return True


def give_back(
    shard: Shard, run: Run, how: Release, *, loss: int = 0, jitter: float | None, now: int
) -> bool:
    """End an attempt without an end of the run; returns whether the run is claimable now.

    Without a `jitter` (in [0, 1)) it is claimable at once, and the attempt doesn't count as futile.
    """
    if run.progressed():
        run.forgive()
    elif jitter is not None:
        run.futile += 1
    run.lost += loss
    shard.unlock(run, how)
    if jitter is None or run.futile < 2:
        shard.enqueue(run, now)
        return True
    shard.postpone(run, now + backoff_ms(run.futile, jitter), "queued", now)
    return False


def backoff_ms(futile: int, jitter: float) -> int:
    """How long a run waits after its `futile`-th (≥ 2) attempt in a row without progress."""
    return int(jitter * min(30_000, 500 * 2 ** (futile - 2)))


def finish(
    shard: Shard,
    lock: Lock,
    first_seq: int,
    events: Sequence[bytes],
    *,
    status: Status,
    completed_ttl_ms: int,
    maxlen: int,
    now: int,
) -> None:
    """End the run and tell whoever watches it."""
    if _repeats(shard, lock, "finish"):
        return
    run = _owned(shard, lock)
    _write(run, first_seq, events, maxlen)
    shard.unlock(run, "finish")
    run.status = status
    run.updated_ms = now
    run_id = run.ref.run_id
    shard.done[run_id] = now + completed_ttl_ms
    terminal = run.journal[-1] if len(run.journal[-1]) <= SMALL_TERMINAL else None
    for member in sorted(run.waiters):
        shard.tell(member, "done", run_id, terminal)


def renew(shard: Shard, lock: Lock, ttl_ms: int, now: int) -> RenewReply:
    """Keep the lock for another `ttl_ms`, if it is still this owner's."""
    run = shard.runs.get(lock.ref.run_id)
    if run is None or run.token != lock.token or shard.is_dead(lock.incarnation, now):
        return RenewReply(held=False, flags=Flag.NONE)
    shard.running[lock.ref.run_id] = now + ttl_ms
    shard.suspects.pop(lock.ref.run_id, None)
    return RenewReply(held=True, flags=run.flags)


def _owned(shard: Shard, lock: Lock) -> Run:
    run = shard.runs.get(lock.ref.run_id)
    if run is None or run.token != lock.token:
        raise TokenRefused(
            f"expected the token of the present owner of {lock.ref.run_id}, found that of attempt "
            f"{lock.epoch}, which has lost the run; stop working on it"
        )
    return run


def _repeats(shard: Shard, lock: Lock, how: Release) -> bool:
    run = shard.runs.get(lock.ref.run_id)
    return run is not None and run.given_up == (lock.token, how)


def _write(run: Run, first_seq: int, events: Sequence[bytes], maxlen: int) -> None:
    known = run.length - (first_seq - 1)
    if known < 0:
        raise JournalRolledBack(
            f"expected at least {first_seq - 1} events of {run.ref.run_id}, found {run.length}; "
            "the store was rolled back, the run goes on from what is left"
        )
    run.journal.extend(events[known:])
    excess = len(run.journal) - maxlen
    if excess > 0:
        del run.journal[:excess]
        run.trimmed += excess
