"""A journal has one writer; each of its events is applied once, in order, without a gap."""

from __future__ import annotations

import pytest

from pyrula.workflows.stores.base import Flag
from pyrula.workflows.stores.errors import (
    JournalRolledBack,
    RunNotFoundError,
    TokenRefused,
    TruncatedHistoryError,
)
from tests.conformance.stage import COMPLETE, INIT, Stage, done, pending


async def test_events_are_written_behind_those_that_are_there(stage: Stage) -> None:
    lock = await stage.own("a")
    reply = await stage.store.append(lock, 2, [pending("0"), done("0")])
    assert (reply.length, reply.flags) == (3, Flag.NONE)
    assert await stage.journal("a") == [INIT, pending("0"), done("0")]


async def test_an_append_repeated_after_a_lost_reply_is_applied_once(stage: Stage) -> None:
    lock = await stage.own("a")
    first = await stage.store.append(lock, 2, [done("0")])
    assert await stage.store.append(lock, 2, [done("0")]) == first
    assert await stage.journal("a") == [INIT, done("0")]


async def test_an_append_carries_again_what_a_lost_post_did_not_write(stage: Stage) -> None:
    lock = await stage.own("a")
    reply = await stage.store.append(lock, 2, [pending("0"), done("0")])
    again = await stage.store.append(lock, 3, [done("0"), pending("1")])
    assert (reply.length, again.length) == (3, 4)
    assert await stage.journal("a") == [INIT, pending("0"), done("0"), pending("1")]


async def test_an_append_of_nothing_tells_length_and_flags(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.store.cancel(lock.ref)
    reply = await stage.store.append(lock, 2, [])
    assert (reply.length, reply.flags) == (1, Flag.CANCEL)


async def test_a_post_is_an_append_whose_answer_may_be_left(stage: Stage) -> None:
    lock = await stage.own("a")
    stage.store.post(lock, 2, [pending("0")])
    reply = await stage.store.append(lock, 2, [pending("0"), done("0")])
    assert reply.length == 3
    assert await stage.journal("a") == [INIT, pending("0"), done("0")]


async def test_an_awaited_post_answers_as_an_append(stage: Stage) -> None:
    lock = await stage.own("a")
    assert (await stage.store.post(lock, 2, [pending("0")])).length == 2


async def test_a_refused_post_tells_whoever_awaits_it(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.settle()
    with pytest.raises(TokenRefused):
        await stage.store.post(lock, 2, [pending("0")])


async def test_a_refused_post_that_nobody_awaits_is_silent(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.settle()
    stage.store.post(lock, 2, [pending("0")])
    await stage.store.ping()


async def test_an_append_behind_a_gap_writes_nothing(stage: Stage) -> None:
    lock = await stage.own("a")
    with pytest.raises(JournalRolledBack) as refused:
        await stage.store.append(lock, 3, [done("0")])
    assert refused.value.code == "journal_rolled_back"
    assert await stage.journal("a") == [INIT]


async def test_an_old_token_writes_nothing(stage: Stage) -> None:
    old = await stage.own("a")
    await stage.settle()
    new = await stage.reclaim("a", member="member-2")
    before = await stage.journal("a")
    with pytest.raises(TokenRefused) as refused:
        await stage.store.append(old, len(before) + 1, [done("0")])
    assert refused.value.code == "lock_lost"
    assert await stage.journal("a") == before
    assert (await stage.store.append(new, len(before) + 1, [done("0")])).length == len(before) + 1


async def test_a_token_that_was_given_up_writes_nothing(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.store.park(lock, 2, [], due_ms=None)
    with pytest.raises(TokenRefused):
        await stage.store.append(lock, 2, [done("0")])
    assert await stage.journal("a") == [INIT]


async def test_nothing_is_written_after_the_terminal_event(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.store.finish(lock, 2, [COMPLETE], status="completed")
    with pytest.raises(TokenRefused):
        await stage.store.append(lock, 3, [done("0")])
    assert await stage.journal("a") == [INIT, COMPLETE]


async def test_payloads_come_back_byte_for_byte(stage: Stage) -> None:
    lock = await stage.own("a")
    payloads = [
        b"[]",
        b"{}",
        b"9007199254740993",
        b"1e308",
        "\u2028é\n\r\n$-1".encode(),
        b"\x00\xff",
    ]
    await stage.store.append(lock, 2, payloads)
    assert (await stage.journal("a"))[1:] == payloads


async def test_a_read_starts_where_it_is_asked_to(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.store.append(lock, 2, [done("0"), done("1"), done("2")])
    page = await stage.store.read_journal(lock.ref, 3, max_events=1)
    assert (page.events, page.first_seq, page.length, page.trimmed) == ([done("1")], 3, 4, 0)


async def test_a_read_past_the_end_is_empty(stage: Stage) -> None:
    ref = await stage.submit("a")
    page = await stage.store.read_journal(ref, 2)
    assert (page.events, page.length) == ([], 1)


async def test_a_read_gives_at_least_one_event_however_small_the_limit(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.store.append(lock, 2, [done("0"), done("1")])
    assert (await stage.store.read_journal(lock.ref, 2, max_bytes=1)).events == [done("0")]
    two = len(done("0")) + len(done("1"))
    assert len((await stage.store.read_journal(lock.ref, 2, max_bytes=two)).events) == 2


async def test_a_long_journal_is_read_in_pages(stage: Stage) -> None:
    lock = await stage.own("a")
    written = [done(str(number)) for number in range(300)]
    await stage.store.append(lock, 2, written)
    read: list[bytes] = []
    while len(read) < 301:
        page = await stage.store.read_journal(lock.ref, len(read) + 1, max_events=70)
        assert 0 < len(page.events) <= 70
        read += page.events
    assert read == [INIT, *written]


async def test_reading_a_run_that_is_not_there_says_so(stage: Stage) -> None:
    with pytest.raises(RunNotFoundError):
        await stage.store.read_journal(stage.ref("nowhere"), 1)


async def test_a_trimmed_journal_tells_how_many_events_are_missing(stage: Stage) -> None:
    short = await stage.another(maxlen=5)
    lock = await stage.own("a")
    written = [done(str(number)) for number in range(9)]
    await short.append(lock, 2, written)
    await stage.until(lambda: _is_trimmed(stage, lock.ref.run_id))
    with pytest.raises(TruncatedHistoryError) as truncated:
        await stage.store.read_journal(lock.ref, 5)
    assert truncated.value.detail == {"missing": 5}
    page = await stage.store.read_journal(lock.ref, 6)
    assert (page.events, page.length, page.trimmed) == (written[4:], 10, 5)
    assert (await stage.info("a")).events == 10


async def test_a_claim_of_a_trimmed_run_says_so_and_appends_go_on(stage: Stage) -> None:
    short = await stage.another(maxlen=5)
    lock = await stage.own("a")
    await short.append(lock, 2, [done(str(number)) for number in range(9)])
    await stage.until(lambda: _is_trimmed(stage, lock.ref.run_id))
    assert (await short.append(lock, 11, [])).length == 10
    await stage.store.requeue(lock, 11, [], backoff=False)
    (claimed,) = await stage.claim()
    assert (claimed.trimmed, claimed.length, len(claimed.page)) == (5, 10, 5)


async def _is_trimmed(stage: Stage, run_id: str) -> bool:
    page = await stage.store.read_journal(stage.ref(run_id), 10)
    return page.trimmed == 5
