"""The death of a member is settled once and for all, by whoever and however often."""

from __future__ import annotations

import pytest

from pyrula.workflows.stores.errors import TokenRefused
from pyrula.workflows.stores.events import RunRequeued, unpack
from tests.conformance.stage import INIT, LONG_MS, MEMBER, Stage, done
from tests.support.clock import FixedRng


async def test_all_that_the_dead_held_is_requeued_in_place(stage: Stage) -> None:
    for run_id in ("a", "b", "c"):
        await stage.submit(run_id)
    await stage.claim(limit=2)
    assert await stage.settle() == (2, False)
    assert await stage.claimable() == ["a", "b", "c"]


async def test_runs_of_others_are_left_alone(stage: Stage) -> None:
    other = await stage.own("other", member="member-2")
    await stage.own("a")
    assert await stage.settle(MEMBER) == (1, False)
    assert (await stage.store.append(other, 2, [done("0")])).length == 2


async def test_runs_that_the_dead_had_given_up_are_left_alone(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.store.park(lock, 2, [], due_ms=None)
    assert await stage.settle() == (0, False)
    assert await stage.journal("a") == [INIT]


async def test_a_settlement_repeated_requeues_nothing_more(stage: Stage) -> None:
    await stage.own("a")
    assert await stage.settle() == (1, False)
    assert await stage.settle() == (0, False)
    new = await stage.reclaim("a", member="member-2")
    assert await stage.settle() == (0, False)
    assert (await stage.store.append(new, 3, [])).length == 2


async def test_a_settlement_goes_on_where_its_limit_stopped_it(stage: Stage) -> None:
    for run_id in ("a", "b", "c"):
        await stage.submit(run_id)
    await stage.claim(limit=3)
    assert await stage.settle(limit=2) == (2, True)
    assert await stage.settle(limit=2) == (1, False)
    assert await stage.claimable() == ["a", "b", "c"]


async def test_the_journal_names_the_cause(stage: Stage) -> None:
    await stage.own("a")
    await stage.settle()
    event = unpack((await stage.journal("a"))[-1])
    assert isinstance(event, RunRequeued)
    assert (event.reason, event.cause, event.charged) == ("worker_lost", "killed", False)
    assert (event.lost, event.count) == (1, 0)


async def test_tokens_of_the_dead_are_void(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.settle()
    with pytest.raises(TokenRefused):
        await stage.store.append(lock, 3, [done("0")])


@pytest.mark.parametrize(
    ("lost", "expected"),
    [(None, {"a": 1, "b": 1}), ([], {"a": 0, "b": 0}), (["b"], {"a": 0, "b": 1})],
)
async def test_only_named_losses_count(
    stage: Stage, lost: list[str] | None, expected: dict[str, int]
) -> None:
    await stage.submit("a")
    await stage.submit("b")
    await stage.claim(limit=2)
    await stage.settle(lost=lost)
    assert {run_id: (await stage.info(run_id)).lost for run_id in expected} == expected


async def test_losses_are_told_to_the_next_owner(stage: Stage) -> None:
    await stage.own("a")
    await stage.settle()
    (claimed,) = await stage.claim(member="member-2")
    assert claimed.lost == 1


async def test_a_park_forgives_losses(stage: Stage) -> None:
    await stage.own("a")
    await stage.settle()
    lock = await stage.reclaim("a", member="member-2")
    await stage.store.park(lock, 3, [], due_ms=None)
    assert (await stage.info("a")).lost == 0


async def test_bystanders_never_wait_however_often_their_process_dies(stage: Stage) -> None:
    store = await stage.another(rng=FixedRng(0.9))
    await stage.submit("a")
    for number in range(4):
        await stage.reclaim("a", member=f"member-{number}")
        await store.settle_death(
            "orders", 0, incarnation=f"member-{number}", cause="killed", lost=[]
        )
    assert await stage.claimable() == ["a"]


async def test_the_guilty_wait_longer_and_longer(stage: Stage) -> None:
    store = await stage.another(rng=FixedRng(0.9))
    await stage.submit("a")
    for number in range(2):
        await stage.reclaim("a", member=f"member-{number}")
        await store.settle_death(
            "orders", 0, incarnation=f"member-{number}", cause="killed", lost=["a"]
        )
    info = await stage.info("a")
    assert info.status == "queued"
    assert info.due_ms is not None
    assert 0 < info.due_ms - info.updated_ms <= 500
    assert await stage.claimable() == []


async def test_a_settlement_wakes_hungry_members_but_not_the_dead(stage: Stage) -> None:
    dead, alive = await stage.hear(MEMBER), await stage.hear("member-2")
    await stage.own("a", limit=2)
    await stage.claim(hungry_ms=LONG_MS)
    await stage.claim(member="member-2", hungry_ms=LONG_MS)
    await stage.settle(MEMBER)
    assert (await alive.next()).kind == "work"
    assert dead.silent


async def test_a_claim_whose_reply_was_lost_is_settled_too(stage: Stage) -> None:
    await stage.submit("a")
    await stage.store.claim(stage.request())
    assert await stage.settle() == (1, False)


async def test_settling_a_member_that_was_never_there_is_harmless(stage: Stage) -> None:
    await stage.submit("a")
    assert await stage.settle("nobody") == (0, False)
    assert await stage.claimable() == ["a"]


async def test_the_dead_renew_nothing_while_their_settlement_is_half_done(stage: Stage) -> None:
    for run_id in ("a", "b"):
        await stage.submit(run_id)
    locks = [run.lock for run in await stage.claim(limit=2)]
    assert await stage.settle(limit=1) == (1, True)
    assert [reply.held for reply in await stage.renew(*locks)] == [False, False]
    assert await stage.settle(limit=1) == (1, False)
    assert sorted(await stage.claimable()) == ["a", "b"]
