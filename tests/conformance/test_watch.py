"""Whoever waits for a result is told, or told that it is there."""

from __future__ import annotations

import asyncio

import pytest

from pyrula.workflows.stores.base import Hint
from pyrula.workflows.stores.errors import RunNotFoundError
from pyrula.workflows.stores.events import Raw, RunComplete, pack
from tests.conformance.stage import COMPLETE, LONG_MS, WORKFLOW, Stage


async def test_a_watcher_is_told_the_end_with_its_event(stage: Stage) -> None:
    hearing = await stage.hear("client-1")
    lock = await stage.own("a")
    watch = await stage.store.watch(lock.ref, "client-1")
    assert (watch.status, watch.terminal) == ("running", None)
    await stage.store.finish(lock, 2, [COMPLETE], status="completed")
    hint = await hearing.next()
    assert hint == Hint(kind="done", workflow=WORKFLOW, shard=0, run_id="a", terminal=COMPLETE)


async def test_a_large_result_is_told_without_its_event(stage: Stage) -> None:
    hearing = await stage.hear("client-1")
    lock = await stage.own("a")
    await stage.store.watch(lock.ref, "client-1")
    large = pack(RunComplete(t=9, result=Raw(b'"' + b"x" * 5_000 + b'"')))
    await stage.store.finish(lock, 2, [large], status="completed")
    hint = await hearing.next()
    assert (hint.kind, hint.terminal) == ("done", None)
    assert (await stage.store.watch(lock.ref, "client-1")).terminal == large


async def test_a_result_with_line_breaks_arrives_whole(stage: Stage) -> None:
    hearing = await stage.hear("client-1")
    lock = await stage.own("a")
    await stage.store.watch(lock.ref, "client-1")
    odd = pack(RunComplete(t=9, result=Raw(b'{\n"a": 1\n}')))
    await stage.store.finish(lock, 2, [odd], status="completed")
    assert (await hearing.next()).terminal == odd


async def test_watching_a_finished_run_gives_its_last_event(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.store.finish(lock, 2, [COMPLETE], status="failed")
    watch = await stage.store.watch(lock.ref, "client-1")
    assert (watch.status, watch.terminal) == ("failed", COMPLETE)


async def test_every_watcher_is_told(stage: Stage) -> None:
    hearings = [await stage.hear(f"client-{number}") for number in range(3)]
    lock = await stage.own("a")
    for number in range(3):
        await stage.store.watch(lock.ref, f"client-{number}")
    await stage.store.finish(lock, 2, [COMPLETE], status="completed")
    for hearing in hearings:
        assert (await hearing.next()).kind == "done"


async def test_watching_twice_tells_once(stage: Stage) -> None:
    hearing = await stage.hear("client-1")
    watched, other = await stage.own("a"), await stage.own("b")
    for _ in range(2):
        await stage.store.watch(watched.ref, "client-1")
    await stage.store.watch(other.ref, "client-1")
    await stage.store.finish(watched, 2, [COMPLETE], status="completed")
    await stage.store.finish(other, 2, [COMPLETE], status="completed")
    assert [(await hearing.next()).run_id for _ in range(2)] == ["a", "b"]


async def test_watching_a_run_that_is_not_there_says_so(stage: Stage) -> None:
    with pytest.raises(RunNotFoundError):
        await stage.store.watch(stage.ref("nowhere"), "client-1")


async def test_hints_reach_only_their_member(stage: Stage) -> None:
    other, watcher = await stage.hear("client-2"), await stage.hear("client-1")
    lock = await stage.own("a")
    await stage.store.watch(lock.ref, "client-1")
    await stage.store.finish(lock, 2, [COMPLETE], status="completed")
    await watcher.next()
    assert other.silent


async def test_no_callback_comes_after_a_listener_was_closed(stage: Stage) -> None:
    heard: list[Hint] = []
    listener = await stage.store.listen("client-1", heard.append, lambda: None)
    assert listener.degraded is False
    await listener.close()
    lock = await stage.own("a")
    witness = await stage.hear("client-2")
    for member in ("client-1", "client-2"):
        await stage.store.watch(lock.ref, member)
    await stage.store.finish(lock, 2, [COMPLETE], status="completed")
    await witness.next()
    assert heard == []


async def test_a_listener_hears_on_its_own_loop(stage: Stage) -> None:
    here = asyncio.get_running_loop()
    loops: asyncio.Queue[asyncio.AbstractEventLoop] = asyncio.Queue()
    listener = await stage.store.listen(
        "member-1", lambda _: loops.put_nowait(asyncio.get_running_loop()), lambda: None
    )
    await stage.claim(hungry_ms=LONG_MS)
    await stage.submit("a")
    async with asyncio.timeout(5):
        assert await loops.get() is here
    await listener.close()
