"""Hints: acknowledged, subscribed again after a cut, given up with one line when denied."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from structlog.testing import capture_logs

from pyrula.workflows.stores.valkey.link import Timing
from pyrula.workflows.stores.valkey.pubsub import Subscription
from pyrula.workflows.stores.valkey.url import StoreUrl
from tests.store.test_wire import QUICK
from tests.support.proxy import FaultProxy
from tests.support.until import eventually
from tests.support.valkey import ValkeyServer


def ignore(channel: bytes, payload: bytes) -> None:
    """A hint that nobody needs."""


async def test_what_is_published_after_the_acknowledgement_arrives_in_order(
    valkey: ValkeyServer, namespace: str
) -> None:
    got: list[tuple[bytes, bytes]] = []
    hints = Subscription(
        StoreUrl.parse(valkey.url),
        on_message=lambda channel, payload: got.append((channel, payload)),
    )
    hints.start()
    assert await asyncio.gather(*[hints.subscribe(f"{namespace}:{n}") for n in range(3)])
    assert await hints.subscribe(f"{namespace}:0")
    for n in range(300):
        assert valkey.command("PUBLISH", f"{namespace}:{n % 3}", n) == 1
    await eventually(lambda: len(got) == 300)
    assert got == [(f"{namespace}:{n % 3}".encode(), str(n).encode()) for n in range(300)]
    await hints.close()


async def test_after_a_cut_the_owner_hears_of_the_gap_once_all_is_subscribed_again(
    valkey: ValkeyServer, namespace: str, tmp_path: Path
) -> None:
    gaps: list[object] = []

    def note_gap() -> None:
        gaps.append(valkey.command("PUBSUB", "NUMSUB", f"{namespace}:a", f"{namespace}:b")[1::2])

    got: list[bytes] = []
    async with FaultProxy(valkey.socket, tmp_path / "p") as proxy:
        hints = Subscription(
            StoreUrl.parse(proxy.url),
            on_message=lambda _, payload: got.append(payload),
            on_gap=note_gap,
            timing=QUICK,
        )
        hints.start()
        await hints.subscribe(f"{namespace}:a")
        await hints.subscribe(f"{namespace}:b")
        assert not gaps

        async def cut(time: int) -> None:
            await proxy.cut()
            await eventually(lambda: len(gaps) == time)
            assert gaps[-1] == [1, 1]

        for time in (1, 2, 3):
            await cut(time)
        valkey.command("PUBLISH", f"{namespace}:b", "back")
        await eventually(lambda: got == [b"back"])
        await hints.close()


async def test_a_silent_subscriber_is_kept_alive_and_a_dead_one_is_replaced(
    valkey: ValkeyServer, namespace: str, tmp_path: Path
) -> None:
    gaps: list[bool] = []
    timing = Timing(idle=0.02, deadline=0.2, connect=0.3, backoff_cap=0.1)
    async with FaultProxy(valkey.socket, tmp_path / "p") as proxy:
        hints = Subscription(
            StoreUrl.parse(proxy.url),
            on_message=ignore,
            on_gap=lambda: gaps.append(True),
            timing=timing,
        )
        hints.start()
        await hints.subscribe(namespace)
        asked = proxy.requests
        await eventually(lambda: proxy.requests >= asked + 5)
        assert proxy.accepted == 1
        assert not gaps
        proxy.blackhole = True
        await eventually(lambda: proxy.accepted > 1)
        proxy.blackhole = False
        await eventually(lambda: gaps)
        await hints.close()


async def test_a_denied_subscription_costs_one_log_line_and_answers_false(
    private_valkey: Callable[..., ValkeyServer],
) -> None:
    server = private_valkey()
    server.command("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "resetchannels", "&ours:*")
    hints = Subscription(
        StoreUrl.parse(f"unix://app:pw@{server.socket}"), on_message=ignore, timing=QUICK
    )
    with capture_logs() as lines:
        hints.start()
        assert not await hints.subscribe("theirs:1")
        assert await hints.subscribe("ours:1")
        assert not await hints.subscribe("theirs:2")
        await hints.close()
    assert [line["event"] for line in lines] == ["pubsub_denied"]


async def test_a_subscription_denied_again_after_a_cut_is_not_taken_for_listening(
    private_valkey: Callable[..., ValkeyServer], tmp_path: Path
) -> None:
    server = private_valkey()
    server.command("ACL", "SETUSER", "default", "resetchannels", "&ours:*")
    gaps: list[bool] = []
    async with FaultProxy(server.socket, tmp_path / "p") as proxy:
        hints = Subscription(
            StoreUrl.parse(proxy.url),
            on_message=ignore,
            on_gap=lambda: gaps.append(hints.listening),
            timing=QUICK,
        )
        hints.start()
        assert await hints.subscribe("ours:1")
        listening = [hints.listening]
        assert not await hints.subscribe("theirs:1")
        listening.append(hints.listening)
        assert listening == [True, False]
        await proxy.cut()
        await eventually(lambda: gaps)
        server.command("ACL", "SETUSER", "default", "allchannels")
        await proxy.cut()
        await eventually(lambda: hints.listening)
        await hints.close()
        assert not await hints.subscribe("ours:2")
    assert gaps == [False, True]


async def test_a_subscription_asked_for_while_the_server_is_away_is_made_when_it_is_back(
    private_valkey: Callable[..., ValkeyServer],
) -> None:
    server = private_valkey()
    server.kill()
    hints = Subscription(StoreUrl.parse(server.url), on_message=ignore, timing=QUICK)
    hints.start()
    asked = asyncio.ensure_future(hints.subscribe("c"))
    never = asyncio.ensure_future(hints.subscribe("d"))
    server.start()
    assert await asked
    assert await never
    server.kill()
    late = asyncio.ensure_future(hints.subscribe("e"))
    await hints.close()
    assert not await late
