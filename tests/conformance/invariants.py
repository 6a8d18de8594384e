"""What must hold of the memory store's insides after every transition (reliability.md)."""

from __future__ import annotations

from collections.abc import Sequence

from pyrula.workflows.stores.base import TERMINAL
from pyrula.workflows.stores.events import EVENTS, StepDone, StepPending, kind_of, unpack
from pyrula.workflows.stores.memory.records import Run, Shard


def check_fifo(waiting: Sequence[tuple[int, str]], limit: int, claimed: Sequence[str]) -> None:
    """V12: the oldest claimable runs were taken, in their order."""
    assert list(claimed) == [run_id for _, run_id in waiting[:limit]]


def check_conservation(shard: Shard) -> None:
    """V7: each run is in exactly one place, and the indexes name no other."""
    queued = [run_id for _, run_id in shard.queue]
    held = [run_id for ids in shard.held.values() for run_id in ids]
    for named in (queued, held):
        assert len(named) == len(set(named))
    for run_id, run in shard.runs.items():
        places = (run_id in queued, run_id in shard.running, run_id in shard.timers)
        assert places in _PLACES[run.status], f"{run_id} is {run.status} and lies in {places}"
        owner = run.incarnation or ""
        assert (run_id in shard.held.get(owner, ())) == (run.status == "running") == bool(run.token)
        assert (run_id in shard.done) == run.ended
        if run_id in queued:
            assert (run.score, run_id) in shard.queue
    assert {*queued, *shard.timers, *shard.running} <= shard.runs.keys()
    assert sorted(held) == sorted(shard.running)
    assert shard.suspects.keys() <= shard.running.keys()


# queued, running, sleeping: where a run of that status may lie.
_PLACES = {
    "queued": {(True, False, False), (False, False, True)},
    "running": {(False, True, False)},
    "sleeping": {(False, False, True)},
    "waiting": {(False, False, False)},
} | {status: {(False, False, False)} for status in TERMINAL}


def check_history(before: Sequence[bytes], run: Run) -> None:
    """V1, V2, V5: a journal only grows, by each event once, ends once; writers never interleave."""
    assert run.journal[: len(before)] == list(before)
    kinds = [kind_of(unpack(event)) for event in run.journal]
    ends = [number for number, kind in enumerate(kinds) if EVENTS[kind].terminal]
    assert ends == ([len(kinds) - 1] if run.ended else [])
    owned = [event for event in run.journal if _epoch_of(event)]
    assert len(owned) == len(set(owned))
    epochs = [_epoch_of(event) for event in owned]
    assert epochs == sorted(epochs)


def _epoch_of(event: bytes) -> int:
    """The epoch of the token that the event carries; 0 for those written by scripts."""
    known = unpack(event)
    if isinstance(known, StepPending):
        return int(known.n.split(":")[0])
    if isinstance(known, StepDone):
        return int(bytes(known.r).strip(b'"').split(b":")[0])
    return 0
