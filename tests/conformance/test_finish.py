"""A run ends once: with its last event, its status, and everybody told."""

from __future__ import annotations

import pytest

from pyrula.workflows.stores.base import TERMINAL, Status
from pyrula.workflows.stores.errors import JournalRolledBack, RunNotFoundError, TokenRefused
from tests.conformance.stage import COMPLETE, INIT, WORKFLOW, Stage, done


@pytest.mark.parametrize("status", sorted(TERMINAL))
async def test_a_finished_run_has_its_status_and_no_owner(stage: Stage, status: Status) -> None:
    lock = await stage.own("a")
    await stage.store.finish(lock, 2, [done("0"), COMPLETE], status=status)
    info = await stage.info("a")
    assert (info.status, info.incarnation, info.events) == (status, None, 3)
    assert await stage.journal("a") == [INIT, done("0"), COMPLETE]
    assert await stage.claimable() == []


async def test_a_finish_repeated_after_a_lost_reply_writes_one_terminal_event(
    stage: Stage,
) -> None:
    lock = await stage.own("a")
    for _ in range(2):
        await stage.store.finish(lock, 2, [COMPLETE], status="completed")
    assert await stage.journal("a") == [INIT, COMPLETE]


async def test_finishing_with_an_old_token_changes_nothing(stage: Stage) -> None:
    old = await stage.own("a")
    await stage.settle()
    new = await stage.reclaim("a", member="member-2")
    before = await stage.journal("a")
    with pytest.raises(TokenRefused):
        await stage.store.finish(old, len(before) + 1, [COMPLETE], status="completed")
    assert await stage.journal("a") == before
    await stage.store.finish(new, len(before) + 1, [COMPLETE], status="completed")


async def test_an_owner_that_parked_can_not_finish(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.store.park(lock, 2, [], due_ms=None)
    with pytest.raises(TokenRefused):
        await stage.store.finish(lock, 2, [COMPLETE], status="completed")
    assert (await stage.info("a")).status == "waiting"


async def test_finishing_behind_a_gap_changes_nothing(stage: Stage) -> None:
    lock = await stage.own("a")
    with pytest.raises(JournalRolledBack):
        await stage.store.finish(lock, 7, [COMPLETE], status="completed")
    assert (await stage.info("a")).status == "running"


async def test_a_finished_run_is_no_longer_its_owners_to_lose(stage: Stage) -> None:
    lock = await stage.own("a", lock_ttl_ms=30)
    await stage.store.finish(lock, 2, [COMPLETE], status="completed")
    await stage.elapse(60)
    assert await stage.scan(90) == (0, 0)
    assert await stage.settle() == (0, False)
    assert await stage.journal("a") == [INIT, COMPLETE]


async def test_a_finished_run_is_gone_after_its_time(stage: Stage) -> None:
    brief = await stage.another(completed_ttl=0.05)
    lock = await stage.own("a")
    await brief.finish(lock, 2, [COMPLETE], status="completed")
    await stage.until(lambda: _is_gone(stage, "a"))
    with pytest.raises(RunNotFoundError):
        await stage.journal("a")


async def test_a_sweep_forgets_expired_runs_and_no_others(stage: Stage) -> None:
    brief = await stage.another(completed_ttl=0.05)
    kept = await stage.own("kept")
    await stage.store.finish(kept, 2, [COMPLETE], status="completed")
    await stage.submit("live")
    (live,) = await stage.claim()
    await stage.submit("gone")
    gone = await stage.reclaim("gone")
    await brief.finish(gone, 2, [COMPLETE], status="completed")
    assert await stage.store.sweep(WORKFLOW, 0) == 0
    await stage.until(lambda: stage.store.sweep(WORKFLOW, 0))
    assert await stage.store.sweep(WORKFLOW, 0) == 0
    left = await stage.store.list_runs(WORKFLOW, status=None, owner=None, limit=10)
    assert {run.ref.run_id for run in left} == {"kept", "live"}
    assert await stage.store.find("gone") == []
    assert (await stage.store.append(live.lock, 2, [done("0")])).length == 2


async def test_a_sweep_forgets_no_more_than_its_limit(stage: Stage) -> None:
    brief = await stage.another(completed_ttl=0.03)
    for run_id in ("a", "b", "c"):
        lock = await stage.own(run_id)
        await brief.finish(lock, 2, [COMPLETE], status="completed")
    await stage.elapse(60)
    await stage.until(lambda: _is_gone(stage, "c"))
    assert await stage.store.sweep(WORKFLOW, 0, limit=2) == 2
    assert await stage.store.sweep(WORKFLOW, 0, limit=2) == 1


async def test_the_id_of_an_expired_run_can_be_used_again(stage: Stage) -> None:
    brief = await stage.another(completed_ttl=0.05)
    lock = await stage.own("a")
    await brief.finish(lock, 2, [COMPLETE], status="completed")
    await stage.until(lambda: _is_gone(stage, "a"))
    await stage.submit("a", digest="other")
    assert await stage.store.sweep(WORKFLOW, 0) == 0
    assert await stage.journal("a") == [INIT]
    assert await stage.claimable() == ["a"]


async def _is_gone(stage: Stage, run_id: str) -> bool:
    try:
        await stage.info(run_id)
    except RunNotFoundError:
        return True
    return False
