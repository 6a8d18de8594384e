"""A run is accepted once, whatever is repeated."""

from __future__ import annotations

import pytest

from pyrula.workflows.stores.base import Submission
from pyrula.workflows.stores.errors import ConflictError, StoreEmptied
from tests.conformance.stage import INIT, Stage


async def test_a_submitted_run_is_queued_with_its_init_as_first_event(stage: Stage) -> None:
    await stage.submit("a", owner="acme")
    info = await stage.info("a")
    assert (info.status, info.owner, info.events, info.epoch) == ("queued", "acme", 1, 0)
    assert await stage.journal("a") == [INIT]


async def test_a_submit_repeated_with_the_same_digest_changes_nothing(stage: Stage) -> None:
    ref = await stage.submit("a")
    again = Submission(ref=ref, init=b'{"e":"run:init","other":1}', digest="d")
    assert await stage.store.submit(again) is False
    assert await stage.journal("a") == [INIT]
    assert await stage.claimable() == ["a"]


async def test_a_submit_repeated_while_the_run_is_owned_does_not_queue_it(stage: Stage) -> None:
    lock = await stage.own("a")
    assert await stage.store.submit(Submission(ref=lock.ref, init=INIT, digest="d")) is False
    assert await stage.claimable() == []


async def test_an_id_taken_by_another_digest_is_a_conflict(stage: Stage) -> None:
    ref = await stage.submit("a")
    with pytest.raises(ConflictError) as conflict:
        await stage.store.submit(Submission(ref=ref, init=INIT, digest="other"))
    assert conflict.value.code == "run_exists"


async def test_a_delayed_run_is_not_claimable_before_it_is_due(stage: Stage) -> None:
    await stage.submit("a", delay_ms=60_000)
    assert await stage.fire() == 0
    assert await stage.claimable() == []
    info = await stage.info("a")
    assert info.status == "queued"
    assert info.due_ms == info.created_ms + 60_000


async def test_a_delayed_run_is_claimable_once_its_timer_fired(stage: Stage) -> None:
    await stage.submit("a", delay_ms=30)
    await stage.until(stage.fire)
    assert (await stage.info("a")).due_ms is None
    assert await stage.claimable() == ["a"]


async def test_a_delayed_run_takes_its_place_in_the_queue_when_it_is_due(stage: Stage) -> None:
    await stage.submit("early", delay_ms=30)
    await stage.submit("late")
    await stage.until(stage.fire)
    assert await stage.claimable() == ["late", "early"]


async def test_submitting_to_a_name_that_was_never_registered_is_loud(stage: Stage) -> None:
    ref = stage.ref("a", workflow="unknown")
    with pytest.raises(StoreEmptied):
        await stage.store.submit(Submission(ref=ref, init=INIT, digest="d"))
