"""The hot path to one Valkey node: every caller of the process shares one connection.

Owns the framing and the matching of replies to requests, by position only. Requests of one loop
tick leave in one write. A cancelled caller's reply is read and dropped, so it can't reach another
caller. Whatever breaks the match (garbage, a reply nobody asked for, a lost connection) ends the
connection and fails everything in flight; no call is ever repeated here except one that the server
refused with NOSCRIPT, which it provably did not run.

Refuses: blocking commands, subscriptions without `on_push`, and any second chance for a request
whose outcome is unknown. That decision needs an operation id and belongs to the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import hiredis

Argument = str | bytes | int | float
Reply = Any
# The default, False, is what a RESP3 `#f` reads as: taken for the end, it would shift every reply.
_NOTHING = object()
# The stub of hiredis says "a tuple of one", and nothing about the result.
_pack = cast(
    "Callable[[tuple[Argument, ...]], bytes]",
    hiredis.pack_command,  # pyright: ignore[reportUnknownMemberType]
)


class WireError(Exception):
    """Root of what a connection reports; the store turns it into the public error tree."""


class NotSent(WireError):
    """The request never left this process: repeat it freely."""


class OutcomeUnknown(WireError):
    """The request may or may not have been applied: repeat it only by operation id."""


class ServerError(WireError):
    """The server answered this one request with an error; `code` is its first word.

    >>> ServerError("NOSCRIPT No matching script").code
    'NOSCRIPT'
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = message.partition(" ")[0]


class Connection(asyncio.Protocol):
    """A multiplexed RESP2 connection to one node.

    `scripts` maps SHA1 → source of the scripts that may be repaired when the server forgot them.
    `on_push(value)` takes what answers no request (a subscriber); without it that is an error.

    >>> _, connection = await loop.create_unix_connection(Connection, "/run/valkey.sock")
    >>> await connection.call("PING")
    b'PONG'
    """

    def __init__(
        self,
        scripts: dict[bytes, bytes] | None = None,
        on_push: Callable[[Reply], None] | None = None,
    ) -> None:
        self.lost: str | None = "not connected yet"
        self.heard = 0
        self.paused = False
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._scripts = scripts if scripts is not None else {}
        self._on_push = on_push
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._reader = hiredis.Reader(replyError=ServerError, notEnoughData=_NOTHING)
        # One entry a request, oldest first. The last len(_outbox) of them have not left yet.
        self._waiting: deque[tuple[asyncio.Future[Reply], tuple[Argument, ...]]] = deque()
        self._outbox: list[bytes] = []
        self._repairing: set[bytes] = set()
        self._drain_waiters: list[asyncio.Future[None]] = []
        self._flush_scheduled = False

    def call(self, *args: Argument) -> asyncio.Future[Reply]:
        """Queue a request for this tick's write; the future gets the reply.

        It fails with `ServerError`, `OutcomeUnknown` or `NotSent`. It may be ignored or cancelled;
        neither takes the request back. An argument that can't be packed raises `TypeError` here.
        """
        future = self._loop.create_future()
        if self.lost is not None:
            _fail(future, NotSent(self.lost))
            return future
        packed = _pack(args)
        self._waiting.append((future, args))
        self._outbox.append(packed)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_tick)
        return future

    def send(self, *args: Argument) -> asyncio.Future[Reply]:
        """Like `call`, and the request is with the kernel when this returns, behind all before it.

        Only while `paused` (the kernel takes no more) does it stay in this process.
        """
        future = self.call(*args)
        self.flush()
        return future

    def post(self, *args: Argument) -> None:
        """Send a request whose replies go to `on_push` (SUBSCRIBE, and PING beside it)."""
        if self.lost is None:
            self.flush()
            self._transport.write(_pack(args))

    def ping(self) -> None:
        """Provoke a reply, whatever mode the connection is in."""
        if self._on_push is None:
            self.call(b"PING")
        else:
            self.post(b"PING")

    def flush(self) -> None:
        """Give everything queued so far to the kernel now."""
        if self._outbox:
            if self._transport.is_closing():
                self.fail("connection lost")
                return
            data = b"".join(self._outbox)
            self._outbox.clear()
            self._transport.write(data)

    async def drained(self) -> None:
        """Return once the write buffer is below its low-water mark, or the connection is lost."""
        if self.paused and self.lost is None:
            waiter = self._loop.create_future()
            self._drain_waiters.append(waiter)
            await waiter

    def fail(self, reason: str) -> None:
        """End the connection: unsent calls fail with `NotSent`, the others with `OutcomeUnknown`.

        Safe to call twice; the first reason stays.
        """
        if self.lost is not None:
            return
        self.lost = reason
        unsent = len(self._outbox)
        while self._waiting:
            future, _ = self._waiting.pop()
            unsent -= 1
            _fail(future, NotSent(reason) if unsent >= 0 else OutcomeUnknown(reason))
        self._outbox.clear()
        self._release_writers()
        self._transport.abort()

    # -- called by the event loop ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not isinstance: uvloop's transports only look like asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)
        self.lost = None

    def data_received(self, data: bytes) -> None:
        self.heard += 1
        waiting = self._waiting
        gets = self._reader.gets
        try:
            self._reader.feed(data)
            while (reply := gets()) is not _NOTHING:
                if not waiting:
                    self._unasked(reply)
                    continue
                future, args = waiting.popleft()
                if isinstance(reply, ServerError):
                    self._refused(future, args, reply)
                elif not future.done():
                    future.set_result(reply)
        except hiredis.ProtocolError as error:
            self.fail(f"the server sent what is not RESP: {error}")

    def eof_received(self) -> None:
        self.fail("the server closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(f"connection lost: {exc}" if exc else "the server closed the connection")
        if not self.closed.done():
            self.closed.set_result(self.lost or "")

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._release_writers()

    # -- details -----------------------------------------------------------------------------

    def _flush_tick(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def _unasked(self, reply: Reply) -> None:
        if self._on_push is not None:
            self._on_push(reply)
        elif self.lost is None:
            said = reply.message if isinstance(reply, ServerError) else "a reply"
            self.fail(f"the server sent what nobody asked for: {said}")

    def _refused(
        self, future: asyncio.Future[Reply], args: tuple[Argument, ...], error: ServerError
    ) -> None:
        if error.code == "NOSCRIPT" and args[0] == b"EVALSHA":
            sha = args[1]
            if isinstance(sha, bytes) and sha in self._scripts:
                self._repair(future, args, sha)
                return
        _fail(future, error)

    def _repair(
        self, future: asyncio.Future[Reply], args: tuple[Argument, ...], sha: bytes
    ) -> None:
        """Run a forgotten script again, teaching it to the server on the way.

        The first refused call goes out as EVAL, which also caches the script; those refused
        meanwhile follow it as EVALSHA, on the same connection and so behind it. Each round makes
        at least one call succeed, so this ends whatever the rate of SCRIPT FLUSH, and a script
        that the server can't compile fails its caller instead of being loaded for ever.
        """
        if sha in self._repairing:
            again = self.call(*args)
        else:
            self._repairing.add(sha)
            again = self.call(b"EVAL", self._scripts[sha], *args[2:])
            again.add_done_callback(lambda _: self._repairing.discard(sha))
        again.add_done_callback(lambda done: _copy(done, future))

    def _release_writers(self) -> None:
        for waiter in self._drain_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._drain_waiters.clear()


def _fail(future: asyncio.Future[Reply], error: WireError) -> None:
    if not future.done():
        future.set_exception(error)
        # Marks it as seen: a caller may ignore a reply without a warning from the loop.
        future.exception()


def _copy(done: asyncio.Future[Reply], future: asyncio.Future[Reply]) -> None:
    error = done.exception()
    if isinstance(error, WireError):
        _fail(future, error)
    elif not future.done():
        future.set_result(done.result())
