"""The floor under W1: the same appends over a bare multiplexed connection, and nothing else.

Owns a throw-away journal: one script that checks a token and pushes, 50 runs in flight, `pending`
sent and `done` awaited, ten steps each. No claims, no replay, no context, no registry: what W1
falls short of this is what the product costs. Run beside W1 in the same minute; compare the ratio.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import cast

import hiredis

from tests.support.valkey import ValkeyServer

RUNS, STEPS, IN_FLIGHT = 4_000, 10, 50

APPEND = """#!lua
local run = redis.call('HMGET', KEYS[1], 'tok', 'flags', 'trimmed')
if run[1] ~= ARGV[1] then return -1 end
local length = redis.call('LLEN', KEYS[2]) + tonumber(run[3] or 0)
if tonumber(ARGV[2]) ~= length + 1 then return -2 end
return {redis.call('RPUSH', KEYS[2], ARGV[3]), run[2]}
"""
BEGIN = """#!lua
redis.call('HSET', KEYS[1], 'tok', ARGV[1])
return redis.call('RPUSH', KEYS[2], '{}')
"""


# The stub says a tuple of one; it takes any number.
pack = cast("Callable[[tuple[str | bytes, ...]], bytes]", getattr(hiredis, "pack_command"))  # noqa: B009


class Pipe(asyncio.Protocol):
    """Many callers, one connection, replies by position, one write a loop tick."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._waiting: deque[asyncio.Future[object] | None] = deque()
        self._out: list[bytes] = []
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports don't derive from asyncio's classes.
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            future = self._waiting.popleft()
            if future is not None and not future.done():
                future.set_result(reply)

    def call(self, *words: str | bytes) -> asyncio.Future[object]:
        """Send with the others of this tick."""
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if not self._out:
            asyncio.get_running_loop().call_soon(self.flush)
        self._out.append(pack(words))
        return future

    def send(self, *words: str | bytes) -> None:
        """Send at once and forget the reply."""
        self._waiting.append(None)
        self._out.append(pack(words))
        self.flush()

    def flush(self) -> None:
        """Give the kernel what has gathered."""
        if self._out and self._transport is not None:
            self._transport.write(b"".join(self._out))
            self._out.clear()


async def steps_per_second() -> float:
    """One measurement on a fresh server with AOF everysec."""
    with ValkeyServer(aof="everysec") as server:
        loop = asyncio.get_running_loop()
        _, pipe = await loop.create_unix_connection(Pipe, str(server.socket))
        append, begin = [_sha(await pipe.call("SCRIPT", "LOAD", text)) for text in (APPEND, BEGIN)]
        numbers = count()
        began = time.perf_counter()
        await asyncio.gather(*(_lane(pipe, append, begin, numbers) for _ in range(IN_FLIGHT)))
        return RUNS * STEPS / (time.perf_counter() - began)


async def _lane(pipe: Pipe, append: bytes, begin: bytes, numbers: count[int]) -> None:
    while (number := next(numbers)) < RUNS:
        run, journal, token = f"{{f}}run:{number}", f"{{f}}ev:{number}", f"1-{number:032x}"
        await pipe.call(b"EVALSHA", begin, b"2", run, journal, token)
        for step in range(STEPS):
            seq = 2 + 2 * step
            pending = f'{{"e":"step:pending","t":1700000000000,"p":"{step}","n":"noop","h":"0"}}'
            done = f'{{"e":"step:done","t":1700000000000,"p":"{step}","r":{step}}}'
            pipe.send(b"EVALSHA", append, b"2", run, journal, token, str(seq), pending)
            reply = await pipe.call(
                b"EVALSHA", append, b"2", run, journal, token, str(seq + 1), done
            )
            assert isinstance(reply, list), reply


def _sha(reply: object) -> bytes:
    assert isinstance(reply, bytes), reply
    return reply
