"""Transitions and questions of those who never own a run: submit, cancel, watch, read, list.

Owns what a client may do: start a run once, latch cancel, look. Refuses to write to the journal of
an owned run; its owner does that when it sees the flag.
"""

from __future__ import annotations

from pyrula.workflows.stores.base import (
    Flag,
    JournalPage,
    RunInfo,
    RunRef,
    Status,
    Submission,
    Watch,
)
from pyrula.workflows.stores.errors import (
    ConflictError,
    RunFinishedError,
    RunNotFoundError,
    TruncatedHistoryError,
)
from pyrula.workflows.stores.memory.records import Run, Shard


def submit(shard: Shard, submission: Submission, now: int) -> bool:
    """Accept the run once."""
    run_id = submission.ref.run_id
    there = shard.find(run_id, now)
    if there:
        if there.digest == submission.digest:
            return False
        raise ConflictError(
            f"expected the name and parameters that run {run_id} was first submitted with, "
            "found others; choose another run id",
            code="run_exists",
        )
    run = Run(
        ref=submission.ref,
        digest=submission.digest,
        owner=submission.owner,
        journal=[submission.init],
        created_ms=now,
        updated_ms=now,
    )
    shard.done.pop(run_id, None)
    shard.runs[run_id] = run
    if submission.delay_ms > 0:
        shard.postpone(run, now + submission.delay_ms, "queued", now)
    else:
        shard.enqueue(run, now)
        shard.wake(1, now)
    return True


def cancel(shard: Shard, ref: RunRef, now: int) -> Status:
    """Latch cancel, and make sure that somebody looks."""
    run = find(shard, ref, now)
    status = run.status
    if run.ended:
        raise RunFinishedError(
            f"expected a run that goes on, found {ref.run_id} {status}; there is nothing to cancel"
        )
    run.flags |= Flag.CANCEL
    if run.incarnation:
        shard.tell(run.incarnation, "cancel", ref.run_id)
    elif status == "waiting" or ref.run_id in shard.timers:
        shard.enqueue(run, now)
        shard.wake(1, now)
    return status


def watch(shard: Shard, ref: RunRef, member: str, now: int) -> Watch:
    """Register for the end, or tell it."""
    run = find(shard, ref, now)
    if run.ended:
        return Watch(status=run.status, terminal=run.journal[-1])
    run.waiters.add(member)
    return Watch(status=run.status, terminal=None)


def read_journal(
    shard: Shard, ref: RunRef, first_seq: int, *, max_events: int, max_bytes: int, now: int
) -> JournalPage:
    """A page of events, at least one if there is one."""
    run = find(shard, ref, now)
    if first_seq <= run.trimmed:
        raise TruncatedHistoryError(
            f"expected the events of {ref.run_id} from {first_seq} on, found that the first "
            f"{run.trimmed} were trimmed; the run can't be replayed",
            detail={"missing": run.trimmed},
        )
    events: list[bytes] = []
    for event in run.journal[first_seq - 1 - run.trimmed :][:max_events]:
        max_bytes -= len(event)
        if events and max_bytes < 0:
            break
        events.append(event)
    return JournalPage(events=events, first_seq=first_seq, length=run.length, trimmed=run.trimmed)


def info(shard: Shard, run: Run) -> RunInfo:
    """What is known of the run."""
    return RunInfo(
        ref=run.ref,
        status=run.status,
        owner=run.owner,
        created_ms=run.created_ms,
        updated_ms=run.updated_ms,
        due_ms=shard.timers.get(run.ref.run_id),
        events=run.length,
        epoch=run.epoch,
        lost=run.lost,
        incarnation=run.incarnation,
    )


def find(shard: Shard, ref: RunRef, now: int) -> Run:
    """The run, or `RunNotFoundError`."""
    run = shard.find(ref.run_id, now)
    if run is None:
        raise RunNotFoundError(
            f"expected a run {ref.run_id} of {ref.workflow}, found none; "
            "it was never submitted or has expired"
        )
    return run


def matching(shard: Shard, *, status: Status | None, owner: str | None, now: int) -> list[RunInfo]:
    """The shard's runs with that status and owner; None matches all."""
    present = [run for run_id, run in shard.runs.items() if shard.find(run_id, now)]
    return [
        info(shard, run)
        for run in present
        if status in (None, run.status) and owner in (None, run.owner)
    ]
