"""Every script × {its reply, its request} lost once: applied once, and the caller hears the same.

Each scene plays a short story twice, in two namespaces: undisturbed, and through a proxy that loses
the one exchange. Then answers and key space must be the same but for moments in time. The list of
scripts comes from the folder; one without a scene fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

from pyrula.workflows.stores.base import ClaimRequest, Lock, Reservation, RunRef, Submission
from pyrula.workflows.stores.errors import StoreUnavailable
from pyrula.workflows.stores.seams import Seams
from pyrula.workflows.stores.valkey.functions import script_build, upgrade_scripts
from pyrula.workflows.stores.valkey.store import ValkeyStore
from tests.support.keys import content, leaks
from tests.support.proxy import Exchange, FaultProxy, Rule
from tests.support.until import eventually_async
from tests.support.valkey import ValkeyServer

REF = RunRef("orders", "a", 0)
INIT = b'{"e":"run:init","t":1}'
DONE = b'{"e":"step:done","t":2,"p":"0"}'
END = b'{"e":"run:complete","t":3}'
FAR = 4_000_000_000_000
MOMENT = 1_000_000_000_000

Scene = Callable[[ValkeyStore], Awaitable[Any]]
SCENES: dict[str, Scene] = {}


class Counting:
    """Ids and chance without chance, so that two tellings of a story are comparable."""

    def __init__(self) -> None:
        self._count = 0

    def token(self) -> str:
        self._count += 1
        return f"{self._count:032x}"

    def random(self) -> float:
        return 0.5


def scene(*scripts: str) -> Callable[[Scene], Scene]:
    def note(story: Scene) -> Scene:
        SCENES.update(dict.fromkeys(scripts, story))
        return story

    return note


async def submit(store: ValkeyStore, *, delay_ms: int = 0) -> bool:
    return await store.submit(Submission(ref=REF, init=INIT, digest="d", delay_ms=delay_ms))


def asking(n: int = 1, *, lock_ttl_ms: int = 60_000) -> ClaimRequest:
    return ClaimRequest(
        workflow="orders",
        shard=0,
        incarnation="me",
        n=n,
        nonce=f"nonce{n}",
        limit=2,
        lock_ttl_ms=lock_ttl_ms,
    )


async def claimed(store: ValkeyStore, *, lock_ttl_ms: int = 60_000) -> Lock:
    await submit(store)
    return (await store.claim(asking(lock_ttl_ms=lock_ttl_ms))).runs[0].lock


@scene("register_name", "lay_shard")
async def register_another_name(store: ValkeyStore) -> Any:
    return await store.register("refunds", serving=True)


@scene("submit_run")
async def submit_and_submit_again(store: ValkeyStore) -> Any:
    return [await submit(store), await submit(store)]


@scene("reserve_key")
async def tie_a_key_twice(store: ValkeyStore) -> Any:
    first = await store.reserve_key("k", Reservation("a", "d"))
    return first, await store.reserve_key("k", Reservation("b", "e"))


@scene("pass_hint")
async def pass_a_hint_on(store: ValkeyStore) -> Any:
    await submit(store)
    await store.pass_hint("orders", 0)
    return await store.info(REF)


@scene("claim_runs")
async def claim_one(store: ValkeyStore) -> Any:
    await submit(store)
    return await store.claim(asking())


@scene("append_events")
async def append_two(store: ValkeyStore) -> Any:
    return await store.append(await claimed(store), 2, [DONE, DONE])


@scene("trim_journal")
async def outgrow_the_cap(store: ValkeyStore) -> Any:
    lock = await claimed(store)
    reply = await store.append(lock, 2, [DONE] * 7)
    return reply, await store.read_journal(REF, 4)


@scene("park_run")
async def park_until_far(store: ValkeyStore) -> Any:
    return await store.park(await claimed(store), 2, [DONE], due_ms=FAR)


@scene("requeue_run")
async def requeue_with_backoff(store: ValkeyStore) -> Any:
    return await store.requeue(await claimed(store), 2, [], backoff=True)


@scene("finish_run")
async def finish_it(store: ValkeyStore) -> Any:
    await store.finish(await claimed(store), 2, [END], status="completed")
    return await store.info(REF)


@scene("renew_locks")
async def renew_twice_if_need_be(store: ValkeyStore) -> Any:
    lock = await claimed(store)
    renewer = store.renewer()
    try:
        return await asyncio.to_thread(renewer.renew, [lock], 60_000)
    except StoreUnavailable:
        return await asyncio.to_thread(renewer.renew, [lock], 60_000)
    finally:
        renewer.close()


@scene("cancel_run")
async def cancel_a_sleeper(store: ValkeyStore) -> Any:
    await store.park(await claimed(store), 2, [], due_ms=FAR)
    return await store.cancel(REF)


@scene("fire_timers")
async def fire_a_due_sleeper(store: ValkeyStore) -> Any:
    await submit(store, delay_ms=1)
    due = (await store.info(REF)).due_ms
    assert due is not None
    await eventually_async(lambda: has_come(store, due))
    return await store.fire_timers("orders", 0, limit=10)


async def has_come(store: ValkeyStore, moment: int) -> bool:
    """Whether store time is there; asked by repeating a claim, which changes nothing."""
    await store.register("clock", serving=False)
    clock = msgspec.structs.replace(asking(), workflow="clock")
    return (await store.claim(clock)).now_ms >= moment


@scene("scan_orphans")
async def suspect_a_late_lock(store: ValkeyStore) -> Any:
    await claimed(store, lock_ttl_ms=1_000)
    scanned = await store.scan_orphans("orders", 0, lock_ttl_ms=60_000)
    return scanned.suspected, scanned.requeued


@scene("recover_runs")
async def recover_a_lapsed_lock(store: ValkeyStore) -> Any:
    await submit(store)
    lapses = (await store.claim(asking(lock_ttl_ms=1))).now_ms + 1
    await eventually_async(lambda: has_come(store, lapses))
    return await store.recover_pending_runs("orders")


@scene("settle_death")
async def settle_an_owner(store: ValkeyStore) -> Any:
    await claimed(store)
    return await store.settle_death("orders", 0, incarnation="me", cause="killed", lost=None)


@scene("watch_run")
async def watch_a_run(store: ValkeyStore) -> Any:
    await submit(store)
    return await store.watch(REF, "client")


@scene("read_journal", "read_info", "list_runs")
async def look(store: ValkeyStore) -> Any:
    await submit(store)
    page = await store.read_journal(REF, 1)
    listed = await store.list_runs("orders", status="queued", owner=None, limit=5)
    return page, await store.info(REF), listed


@scene("list_expired", "forget_runs")
async def sweep_an_expired_run(store: ValkeyStore) -> Any:
    await store.finish(await claimed(store), 2, [END], status="completed")
    await eventually_async(lambda: gone(store))
    return await store.sweep("orders", 0), await store.find("a")


async def gone(store: ValkeyStore) -> bool:
    return await store.find("a") == []


@asynccontextmanager
async def opened(url: str, namespace: str, *, ttl: float = 3_600) -> AsyncGenerator[ValkeyStore]:
    counting = Counting()
    store = ValkeyStore(
        url,
        namespace=namespace,
        shard_count=1,
        maxlen=5,
        completed_ttl=ttl,
        store_id=None,
        seams=Seams(ids=counting, rng=counting),
    )
    await store.open()
    try:
        await store.register("orders", serving=True)
        yield store
    finally:
        await store.close()


def timeless(answer: Any) -> Any:
    """The answer as plain data, in which each moment in time is one and the same."""
    plain = msgspec.to_builtins(answer)

    def same(value: Any) -> Any:
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            return {key: same(item) for key, item in fields.items()}
        if isinstance(value, list | tuple):
            return [same(item) for item in cast("list[Any]", value)]
        is_moment = isinstance(value, int) and MOMENT < value < 2 * MOMENT
        return "moment" if is_moment else value

    return same(plain)


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer(tcp=True, aof="everysec") as server:
        yield server


@pytest.mark.parametrize("lost", ["reply", "request"])
@pytest.mark.parametrize("script", sorted(script_build().scripts))
async def test_a_lost_exchange_is_applied_once_and_answered_the_same(
    server: ValkeyServer, namespace: str, script: str, lost: str
) -> None:
    story = SCENES.get(script)
    assert story is not None, f"no scene drives {script}: write one"
    upgrade_scripts(server.url)
    ttl = 0.2 if script in {"list_expired", "forget_runs"} else 3_600
    calm, rough = f"{namespace}c", f"{namespace}r"
    async with opened(server.url, calm, ttl=ttl) as store:
        expected = await story(store)
    async with FaultProxy(server.socket) as proxy, opened(proxy.url, rough, ttl=ttl) as store:
        rule = arm(proxy, script, lost)
        answer = await story(store)
    assert rule.hits == 1
    assert timeless(answer) == timeless(expected)
    assert content(server, rough) == content(server, calm)
    assert leaks(server, rough) == []


def arm(proxy: FaultProxy, script: str, lost: str) -> Rule:
    def the_script(exchange: Exchange) -> bool:
        return exchange.request[0] == b"EVALSHA" and script.encode() in exchange.request

    return proxy.lose_reply(the_script) if lost == "reply" else proxy.lose_request(the_script)


async def test_a_server_that_stays_away_is_unavailable_and_says_whether_it_may_have_applied(
    server: ValkeyServer, namespace: str
) -> None:
    async with FaultProxy(server.socket) as proxy, opened(proxy.url, namespace) as store:
        lock = await claimed(store)
        await proxy.close()
        with pytest.raises(StoreUnavailable) as caught:
            await store.append(lock, 2, [DONE])
        assert caught.value.code == "store_unavailable"
        seen = store.contacts
        await proxy.open()
        assert await store.next_contact(seen) > seen
        assert (await store.append(lock, 2, [DONE])).length == 2


async def test_an_unawaited_post_that_was_lost_is_healed_by_the_append_behind_it(
    server: ValkeyServer, namespace: str
) -> None:
    async with FaultProxy(server.socket) as proxy, opened(proxy.url, namespace) as store:
        lock = await claimed(store)
        rule = arm(proxy, "append_events", "request")
        store.post(lock, 2, [b"pending"])
        reply = await store.append(lock, 2, [b"pending", DONE])
        assert rule.hits == 1
        assert reply.length == 3
        assert (await store.read_journal(REF, 1)).events == [INIT, b"pending", DONE]
