"""The multiplexed connection against a real server, and against bytes no server would send."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from pyrula.workflows.stores.valkey.link import Link, Timing
from pyrula.workflows.stores.valkey.url import StoreUrl
from pyrula.workflows.stores.valkey.wire import (
    Connection,
    NotSent,
    OutcomeUnknown,
    Reply,
    ServerError,
)
from tests.support.proxy import Exchange, Fault, FaultProxy, command
from tests.support.until import eventually
from tests.support.valkey import ValkeyServer

QUICK = Timing(connect=0.5, idle=0.2, deadline=0.4, backoff_first=0.01, backoff_cap=0.1)


@asynccontextmanager
async def linked(url: str, timing: Timing = QUICK) -> AsyncGenerator[Link]:
    link = Link(StoreUrl.parse(url), timing=timing)
    link.start()
    try:
        await link.ready(5)
        yield link
    finally:
        await link.close()


@asynccontextmanager
async def pair() -> AsyncGenerator[tuple[Connection, socket.socket]]:
    """A connection whose server is the test: a non-blocking socket at the other end."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    connection = Connection()
    await asyncio.get_running_loop().create_connection(lambda: connection, sock=ours)
    try:
        yield connection, theirs
    finally:
        connection.fail("the test is over")
        await connection.closed
        theirs.close()


async def test_replies_come_back_in_order_and_errors_hit_only_their_call(valkey_url: str) -> None:
    async with linked(valkey_url) as link:
        first = link.call(b"ECHO", "a")
        broken = link.call(b"NOSUCHCOMMAND")
        last = link.call(b"ECHO", "b")
        assert await first == b"a"
        with pytest.raises(ServerError) as refused:
            await broken
        assert refused.value.code == "ERR"
        assert await last == b"b"


async def test_an_argument_that_cant_be_packed_hurts_nobody_else(valkey_url: str) -> None:
    async with linked(valkey_url) as link:
        before = link.call(b"ECHO", "before")
        with pytest.raises(TypeError):
            link.call(b"ECHO", object())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert await before == b"before"
        assert await link.call(b"ECHO", "after") == b"after"


async def test_the_calls_of_one_tick_leave_in_one_write() -> None:
    async with pair() as (connection, server):
        for number in range(100):
            connection.call(b"ECHO", number)
        with pytest.raises(BlockingIOError):
            server.recv(1)
        await asyncio.sleep(0)
        assert server.recv(100_000).count(b"ECHO") == 100


async def test_send_is_in_the_kernel_when_it_returns_behind_what_was_queued() -> None:
    async with pair() as (connection, server):
        connection.call(b"ECHO", "earlier")
        connection.send(b"ECHO", "pending")
        # No tick of the loop has passed: a process killed now has said it all.
        said = server.recv(10_000)
        assert said.index(b"earlier") < said.index(b"pending")


@pytest.mark.bound(60)
async def test_no_reply_crosses_in_ten_thousand_random_cancellations(
    valkey: ValkeyServer, tmp_path: Path
) -> None:
    chance = random.Random(7)
    cancelled = answered = 0

    async def caller(link: Link, number: int) -> None:
        nonlocal cancelled, answered
        nonce = f"nonce-{number}"
        task = asyncio.ensure_future(link.call(b"ECHO", nonce))
        if chance.random() < 0.5:
            await asyncio.wait({task}, timeout=chance.random() * 0.004)
            cancelled += task.cancel()
        try:
            assert await task == nonce.encode()
            answered += 1
        except asyncio.CancelledError:
            pass

    def slowly(exchange: Exchange) -> float:
        return 0.002 if exchange.number % 40 == 0 else 0.0

    async with FaultProxy(valkey.socket, tmp_path / "p") as proxy, linked(proxy.url) as link:
        proxy.delay = slowly
        number = 0
        while cancelled < 10_000:
            await asyncio.gather(*[caller(link, number + ahead) for ahead in range(500)])
            number += 500
        assert answered > 5_000
        assert link.ups == 1


@pytest.mark.parametrize("garbage", [b"hello\r\n", b"$-7\r\n", b"\x00\x01\x02\r\n", b"*a\r\n"])
async def test_garbage_fails_everything_in_flight_as_unknown_and_closes(garbage: bytes) -> None:
    async with pair() as (connection, server):
        first, second = connection.call(b"GET", "a"), connection.call(b"GET", "b")
        connection.flush()
        server.send(b"+OK\r\n" + garbage)
        assert await first == b"OK"
        with pytest.raises(OutcomeUnknown):
            await second
        with pytest.raises(NotSent):
            await connection.call(b"GET", "d")


async def test_a_false_is_a_reply_and_shifts_no_other() -> None:
    async with pair() as (connection, server):
        replies = [connection.call(b"GET", key) for key in "abc"]
        connection.flush()
        server.send(b"+1\r\n#f\r\n+3\r\n")
        assert await asyncio.gather(*replies) == [b"1", False, b"3"]


async def test_a_reply_nobody_asked_for_closes_the_connection() -> None:
    async with pair() as (connection, server):
        server.send(b"-ERR max number of clients reached\r\n")
        assert "max number of clients" in await connection.closed


async def test_a_connection_that_ends_tells_unsent_from_unknown() -> None:
    async with pair() as (connection, _):
        sent = connection.send(b"INCR", "a")
        queued = connection.call(b"INCR", "b")
        connection.fail("the test cuts it")
        assert isinstance(sent.exception(), OutcomeUnknown)
        assert isinstance(queued.exception(), NotSent)


async def test_ignored_failures_do_not_reach_the_loops_exception_handler() -> None:
    async with pair() as (connection, server):
        connection.call(b"INCR", "a")  # dropped at once; conftest fails the test on a warning
        server.send(b"-ERR no\r\n")
        connection.send(b"INCR", "b")
        await eventually(lambda: connection.heard)


async def test_a_full_kernel_pauses_callers_until_the_server_reads() -> None:
    async with pair() as (connection, server):
        while not connection.paused:
            connection.send(b"SET", "k", b"x" * 100_000)
        drained = asyncio.ensure_future(connection.drained())
        await asyncio.sleep(0)
        assert not drained.done()

        def read_some() -> bool:
            with suppress(BlockingIOError):
                server.recv(1_000_000)
            return drained.done()

        await eventually(read_some)
        assert not connection.paused


async def test_a_caller_waiting_for_room_is_released_when_the_connection_is_lost() -> None:
    async with pair() as (connection, _):
        while not connection.paused:
            connection.send(b"SET", "k", b"x" * 100_000)
        drained = asyncio.ensure_future(connection.drained())
        await asyncio.sleep(0)
        connection.fail("gone")
        await drained


SCRIPT = "return {ARGV[1], redis.call('INCR', KEYS[1])}"


async def test_a_forgotten_script_is_taught_once_for_all_calls_in_flight(
    private_valkey: Callable[..., ValkeyServer],
) -> None:
    server = private_valkey()
    async with linked(server.url) as link:
        sha = link.script(SCRIPT)
        replies: list[Reply] = await asyncio.gather(
            *[link.call(b"EVALSHA", sha, 1, "n", number) for number in range(200)]
        )
        assert [int(reply[0]) for reply in replies] == list(range(200))
        assert [reply[1] for reply in replies] == list(range(1, 201))
        assert server.calls("eval") == 1


async def test_calls_survive_a_script_flush_every_few_milliseconds_applied_once(
    private_valkey: Callable[..., ValkeyServer],
) -> None:
    server = private_valkey()
    calls, flushes = 20_000, 0
    async with linked(server.url) as link, linked(server.url) as other:
        sha = link.script(SCRIPT)
        done = False

        async def flush() -> None:
            nonlocal flushes
            while not done:
                await other.call(b"SCRIPT", b"FLUSH")
                flushes += 1
                await asyncio.sleep(0.002)

        async def caller(number: int) -> None:
            for step in range(number, calls, 50):
                reply = await link.call(b"EVALSHA", sha, 1, "n", step)
                assert int(reply[0]) == step

        flusher = asyncio.ensure_future(flush())
        await asyncio.gather(*[caller(number) for number in range(50)])
        done = True
        await flusher
    assert int(server.command("GET", "n")) == calls
    assert flushes > 10
    assert server.calls("eval") <= flushes + 1


async def test_a_script_that_cant_be_compiled_fails_its_caller(valkey_url: str) -> None:
    async with linked(valkey_url) as link:
        sha = link.script("this is not lua")
        with pytest.raises(ServerError, match="compil"):
            await link.call(b"EVALSHA", sha, 0)


async def test_an_unknown_script_is_the_callers_own_error(valkey_url: str) -> None:
    async with linked(valkey_url) as link:
        with pytest.raises(ServerError) as refused:
            await link.call(b"EVALSHA", b"0" * 40, 0)
        assert refused.value.code == "NOSCRIPT"


async def test_a_lost_reply_is_unknown_and_not_repeated(
    valkey: ValkeyServer, namespace: str, tmp_path: Path
) -> None:
    async with FaultProxy(valkey.socket, tmp_path / "p") as proxy, linked(proxy.url) as link:
        proxy.lose_reply(command("INCR"))
        with pytest.raises(OutcomeUnknown):
            await link.call(b"INCR", namespace)
        await link.ready(5)
        assert await link.call(b"GET", namespace) == b"1"


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.RESET, Fault.TRUNCATE])
async def test_a_request_that_the_server_never_saw_is_unknown_to_the_caller(
    valkey: ValkeyServer, namespace: str, fault: Fault
) -> None:
    async with FaultProxy(("127.0.0.1", valkey.port)) as proxy, linked(proxy.url) as link:
        proxy.lose_request(command("INCR"), fault=fault, keep=9)
        with pytest.raises(OutcomeUnknown):
            await link.call(b"INCR", namespace)
        await link.ready(5)
        assert await link.call(b"GET", namespace) is None
