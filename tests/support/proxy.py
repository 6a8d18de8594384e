"""A proxy in front of a server that loses, delays and cuts, exactly where a test says.

It reads RESP in both directions, so that faults aim at one request or one reply: "the reply of the
third EVALSHA after it was applied". Everything is decided by the test and counted; nothing is
random. Replies are matched to requests by position (a connection in subscribed mode gets its
pushes forwarded unmatched).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Self

from tests.support.resp import frames, words
from tests.support.until import eventually


class Fault(Enum):
    """What happens to the request or reply that a rule picked."""

    STALL = "it and everything behind it vanish; the connection stays open"
    CUT = "it vanishes and the connection is closed"
    RESET = "it vanishes and the connection is reset (RST, loopback TCP only)"
    TRUNCATE = "its first `keep` bytes arrive, then the connection is closed"


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One request, numbered from 1 since the proxy was started, and its reply once there is one."""

    number: int
    connection: int
    request: tuple[bytes, ...]
    reply: bytes | None = None


When = Callable[[Exchange], bool]


def _at_once(_: Exchange) -> float:
    return 0.0


def any_(_: Exchange) -> bool:
    """Every exchange."""
    return True


def command(*first: str) -> When:
    """Requests that begin with these words."""
    wanted = tuple(word.encode() for word in first)
    return lambda exchange: exchange.request[: len(wanted)] == wanted


@dataclass(kw_only=True)
class Rule:
    """A fault that waits for its moment; `hits` counts, `hit` is set at the first."""

    fault: Fault
    when: When
    times: int
    keep: int = 1
    hits: int = 0
    hit: asyncio.Event = field(default_factory=asyncio.Event)


class FaultProxy:
    """Listens beside a server and forwards to it, with the faults that are armed.

    >>> async with FaultProxy(server.socket) as proxy:
    ...     lost = proxy.lose_reply(command("INCR"))
    ...     link = Link(StoreUrl.parse(proxy.url))
    """

    def __init__(
        self,
        upstream: Path | tuple[str, int],
        listen: Path | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._upstream = upstream
        self._listen = listen
        self._tls = tls
        self._port = 0
        self._server: asyncio.Server | None = None
        self._pipes: set[_Pipe] = set()
        self._request_rules: list[Rule] = []
        self._reply_rules: list[Rule] = []
        self.delay: Callable[[Exchange], float] = _at_once
        self.blackhole = False
        self.accepted = 0
        self.requests = 0
        self.log: list[Exchange] = []

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        if self._listen is not None:
            self._listen.unlink(missing_ok=True)

    @property
    def url(self) -> str:
        """The store URL of the proxy."""
        if self._listen is not None:
            return f"unix://{self._listen}"
        return f"{'rediss' if self._tls else 'redis'}://127.0.0.1:{self._port}/0"

    async def open(self) -> None:
        """Listen (again), at the same address as before."""
        if self._listen is not None:
            self._listen.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._serve, self._listen)
        else:
            self._server = await asyncio.start_server(
                self._serve, "127.0.0.1", self._port, ssl=self._tls
            )
            self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Refuse new connections and cut those that are there."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self.cut()

    async def cut(self) -> None:
        """Close every connection now, whatever is on its way."""
        for pipe in list(self._pipes):
            pipe.close()
        await asyncio.gather(*[pipe.ended.wait() for pipe in list(self._pipes)])

    async def flap(self, times: int, reconnected: Callable[[], bool]) -> None:
        """Cut all connections `times` times, each time after `reconnected()` holds again."""
        for _ in range(times):
            await eventually(reconnected)
            await self.cut()

    def lose_request(
        self, when: When = any_, *, times: int = 1, fault: Fault = Fault.CUT, keep: int = 1
    ) -> Rule:
        """The server never sees the next `times` requests that match."""
        rule = Rule(fault=fault, when=when, times=times, keep=keep)
        self._request_rules.append(rule)
        return rule

    def lose_reply(
        self, when: When = any_, *, times: int = 1, fault: Fault = Fault.CUT, keep: int = 1
    ) -> Rule:
        """The server has applied them, the client never hears of it."""
        rule = Rule(fault=fault, when=when, times=times, keep=keep)
        self._reply_rules.append(rule)
        return rule

    def heal(self) -> None:
        """Disarm everything; connections that were hurt stay as they are."""
        self._request_rules.clear()
        self._reply_rules.clear()
        self.delay = _at_once
        self.blackhole = False

    def strike(self, exchange: Exchange) -> Rule | None:
        """The rule that this request (or, once it has one, its reply) falls under."""
        rules = self._request_rules if exchange.reply is None else self._reply_rules
        for rule in rules:
            if rule.hits < rule.times and rule.when(exchange):
                rule.hits += 1
                rule.hit.set()
                return rule
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        pipe = _Pipe(self, self.accepted, reader, writer)
        self._pipes.add(pipe)
        try:
            await pipe.run(self._upstream)
        finally:
            self._pipes.discard(pipe)
            pipe.ended.set()


class _Pipe:
    """One client connection and its connection to the server."""

    def __init__(
        self,
        proxy: FaultProxy,
        number: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.ended = asyncio.Event()
        self._proxy = proxy
        self._number = number
        self._reader = reader
        self._writer = writer
        self._open: deque[Exchange] = deque()
        self._stop = asyncio.Event()
        self._stopped_by: Fault | None = None

    def close(self, fault: Fault = Fault.CUT) -> None:
        """Let go of both sides."""
        self._stopped_by = self._stopped_by or fault
        self._stop.set()

    async def run(self, upstream: Path | tuple[str, int]) -> None:
        try:
            if isinstance(upstream, Path):
                reader, writer = await asyncio.open_unix_connection(upstream)
            else:
                reader, writer = await asyncio.open_connection(*upstream)
        except OSError:
            self._writer.close()  # nobody is behind the proxy, as while a server restarts
            return
        tasks: set[asyncio.Task[Any]] = {
            asyncio.create_task(self._requests(writer)),
            asyncio.create_task(self._replies(reader)),
            asyncio.create_task(self._stop.wait()),
        }
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._stopped_by is Fault.RESET:
                _reset_on_close(self._writer)
            writer.close()
            self._writer.close()

    async def _requests(self, server: asyncio.StreamWriter) -> None:
        async for frame in frames(self._reader):
            if self._proxy.blackhole:
                continue
            self._proxy.requests += 1
            exchange = Exchange(
                number=self._proxy.requests, connection=self._number, request=words(frame)
            )
            self._proxy.log.append(exchange)
            rule = self._proxy.strike(exchange)
            if rule is None:
                self._open.append(exchange)
            await self._forward(frame, server, rule)

    async def _replies(self, server: asyncio.StreamReader) -> None:
        async for frame in frames(server):
            rule = None
            if self._open:
                exchange = replace(self._open.popleft(), reply=frame)
                await asyncio.sleep(self._proxy.delay(exchange))
                rule = self._proxy.strike(exchange)
            if not self._proxy.blackhole:
                await self._forward(frame, self._writer, rule)

    async def _forward(self, frame: bytes, to: asyncio.StreamWriter, rule: Rule | None) -> None:
        if rule is None:
            to.write(frame)
        elif rule.fault is Fault.TRUNCATE:
            to.write(frame[: rule.keep])
        await to.drain()
        if rule is not None:
            if rule.fault is not Fault.STALL:
                self.close(rule.fault)
            await asyncio.Event().wait()  # nothing behind it is forwarded


def _reset_on_close(writer: asyncio.StreamWriter) -> None:
    peer: socket.socket | None = writer.get_extra_info("socket")
    if peer is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
