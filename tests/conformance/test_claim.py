"""Claims hand out each run once, in order, under a token of its own."""

from __future__ import annotations

import asyncio

import pytest

from pyrula.workflows.stores.base import Flag
from pyrula.workflows.stores.errors import StoreEmptied, TokenRefused
from tests.conformance.stage import INIT, LONG_MS, MEMBER, WORKFLOW, Stage, done


async def test_runs_are_claimed_in_the_order_they_were_submitted(stage: Stage) -> None:
    for run_id in ("c", "a", "b"):
        await stage.submit(run_id)
    assert await stage.claimable() == ["c", "a", "b"]


async def test_a_claim_takes_no_more_than_its_limit(stage: Stage) -> None:
    for run_id in ("a", "b", "c"):
        await stage.submit(run_id)
    assert len(await stage.claim(limit=2)) == 2
    assert await stage.claimable() == ["c"]


async def test_a_claimed_run_is_running_under_a_token_of_epoch_and_nonce(stage: Stage) -> None:
    await stage.submit("a")
    request = stage.request()
    (claimed,) = (await stage.store.claim(request)).runs
    assert claimed.lock.token == f"1:{request.nonce}"
    assert (claimed.lock.epoch, claimed.lock.incarnation) == (1, MEMBER)
    assert (claimed.page, claimed.length, claimed.trimmed) == ([INIT], 1, 0)
    assert (claimed.flags, claimed.lost) == (Flag.NONE, 0)
    info = await stage.info("a")
    assert (info.status, info.incarnation, info.epoch) == ("running", MEMBER, 1)


async def test_the_epoch_rises_with_each_claim(stage: Stage) -> None:
    first = await stage.own("a")
    assert await stage.store.requeue(first, 2, [], backoff=False)
    second = await stage.reclaim("a")
    assert (first.epoch, second.epoch) == (1, 2)
    assert first.token != second.token


async def test_an_owned_run_is_claimed_by_nobody_else(stage: Stage) -> None:
    await stage.own("a")
    assert await stage.claim(member="member-2", limit=10) == []


async def test_the_same_n_again_gives_the_same_answer(stage: Stage) -> None:
    await stage.submit("a")
    await stage.submit("b")
    request = stage.request(limit=1)
    first = await stage.store.claim(request)
    again = await stage.store.claim(request)
    assert again.runs == first.runs
    assert await stage.claimable() == ["b"]


async def test_the_same_n_again_after_an_empty_answer_stays_empty(stage: Stage) -> None:
    request = stage.request()
    assert (await stage.store.claim(request)).runs == []
    await stage.submit("a")
    assert (await stage.store.claim(request)).runs == []


async def test_the_same_n_again_leaves_out_runs_given_up_since(stage: Stage) -> None:
    await stage.submit("a")
    request = stage.request()
    (claimed,) = (await stage.store.claim(request)).runs
    await stage.store.requeue(claimed.lock, 2, [], backoff=False)
    assert (await stage.store.claim(request)).runs == []


async def test_a_lower_n_is_refused_as_stale(stage: Stage) -> None:
    stale = stage.request()
    await stage.claim()
    await stage.submit("a")
    with pytest.raises(TokenRefused):
        await stage.store.claim(stale)
    assert await stage.claimable() == ["a"]


async def test_counters_of_two_members_are_their_own(stage: Stage) -> None:
    for _ in range(3):
        await stage.claim(member="member-1")
    await stage.submit("a")
    assert len(await stage.claim(member="member-2")) == 1


async def test_a_buried_member_can_not_claim(stage: Stage) -> None:
    await stage.submit("a")
    await stage.settle(MEMBER)
    with pytest.raises(TokenRefused):
        await stage.claim(member=MEMBER)
    assert await stage.claimable() == ["a"]


async def test_a_repeat_of_a_claim_by_a_member_buried_since_is_refused(stage: Stage) -> None:
    await stage.submit("a")
    request = stage.request()
    await stage.store.claim(request)
    await stage.settle(MEMBER)
    with pytest.raises(TokenRefused):
        await stage.store.claim(request)


async def test_pages_ride_along_while_they_fit_the_byte_budget(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.store.append(lock, 2, [done(str(path)) for path in range(20)])
    await stage.store.requeue(lock, 22, [], backoff=False)
    whole = await stage.journal("a")
    (claimed,) = await stage.claim(byte_budget=sum(map(len, whole[:5])))
    assert claimed.page == whole[:5]
    assert claimed.length == 21
    rest = await stage.store.read_journal(claimed.lock.ref, 6)
    assert claimed.page + rest.events == whole


async def test_the_byte_budget_is_shared_by_the_runs_of_a_claim(stage: Stage) -> None:
    await stage.submit("a")
    await stage.submit("b")
    first, second = await stage.claim(limit=2, byte_budget=len(INIT))
    assert (first.page, second.page) == ([INIT], [])
    assert second.length == 1


async def test_a_claim_tells_store_time(stage: Stage) -> None:
    before = await stage.now_ms()
    reply = await stage.claim_reply()
    assert before <= reply.now_ms <= await stage.now_ms()


async def test_claiming_an_unregistered_name_is_loud(stage: Stage) -> None:
    with pytest.raises(StoreEmptied):
        await stage.claim(workflow="unknown")


async def test_a_hungry_member_hears_of_a_submit(stage: Stage) -> None:
    hearing = await stage.hear(MEMBER)
    await stage.claim(hungry_ms=LONG_MS)
    await stage.submit("a")
    hint = await hearing.next()
    assert (hint.kind, hint.workflow, hint.shard) == ("work", WORKFLOW, 0)


async def test_one_submit_wakes_one_member_and_the_longest_hungry_first(stage: Stage) -> None:
    first, second = await stage.hear("member-1"), await stage.hear("member-2")
    await stage.claim(member="member-1", hungry_ms=LONG_MS)
    await stage.elapse(5)
    await stage.claim(member="member-2", hungry_ms=LONG_MS)
    await stage.submit("a")
    assert (await first.next()).kind == "work"
    assert second.silent
    await stage.submit("b")
    assert (await second.next()).kind == "work"
    assert first.silent


async def test_a_member_that_got_all_it_asked_for_is_not_hungry(stage: Stage) -> None:
    full, hungry = await stage.hear("member-1"), await stage.hear("member-2")
    await stage.submit("a")
    assert len(await stage.claim(member="member-1", limit=1)) == 1
    await stage.claim(member="member-2", hungry_ms=LONG_MS)
    await stage.submit("b")
    await hungry.next()
    assert full.silent


async def test_a_member_that_is_served_is_hungry_no_longer(stage: Stage) -> None:
    first, served, last = [await stage.hear(f"member-{number}") for number in range(3)]
    await stage.claim(member="member-0", hungry_ms=LONG_MS)
    await stage.elapse(5)
    await stage.claim(member="member-1", hungry_ms=LONG_MS)
    await stage.submit("a")
    await first.next()
    assert len(await stage.claim(member="member-1", limit=1)) == 1
    await stage.claim(member="member-2", hungry_ms=LONG_MS)
    await stage.submit("b")
    await last.next()
    assert served.silent


async def test_a_member_whose_hunger_expired_is_passed_over(stage: Stage) -> None:
    gone, there = await stage.hear("member-1"), await stage.hear("member-2")
    await stage.claim(member="member-1", hungry_ms=1)
    await stage.elapse(20)
    await stage.claim(member="member-2", hungry_ms=LONG_MS)
    await stage.submit("a")
    await there.next()
    assert gone.silent


async def test_claims_that_race_hand_out_each_run_once(stage: Stage) -> None:
    other = await stage.another()
    ids = [f"run-{number}" for number in range(40)]
    for run_id in ids:
        await stage.submit(run_id)
    replies = await asyncio.gather(
        *(
            (stage.store, other)[number % 2].claim(stage.request(member=f"m{number}", limit=3))
            for number in range(20)
        )
    )
    taken = [run.lock for reply in replies for run in reply.runs]
    assert sorted(lock.ref.run_id for lock in taken) == sorted(ids)
    assert len({lock.token for lock in taken}) > 1
    assert await stage.claimable() == []


async def test_a_hint_is_passed_on_to_the_next_hungry_member_while_there_is_work(
    stage: Stage,
) -> None:
    first, second = await stage.hear("member-1"), await stage.hear("member-2")
    await stage.claim(member="member-1", hungry_ms=LONG_MS)
    await stage.elapse(5)
    await stage.claim(member="member-2", hungry_ms=LONG_MS)
    await stage.store.pass_hint(WORKFLOW, 0)
    await stage.submit("a")
    assert (await first.next()).kind == "work"
    assert second.silent
    await stage.store.pass_hint(WORKFLOW, 0)
    assert (await second.next()).kind == "work"
