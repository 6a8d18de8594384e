"""One endpoint, kept connected: set-up, keepalive and reconnection around a `Connection`.

Owns who is connected to what: AUTH, SELECT and PING before a caller's first request, a PING when
the line is silent, and a jittered back-off capped at one second when it is cut. While the link is
down every call fails at once with `NotSent`; callers that can wait use `ready()`.

Refuses to repeat requests, to queue them while down, and to let one pass before `on_connect` has
approved the server (the store compares the `store_id` there).
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pyrula.workflows.stores.valkey.url import Secret, StoreUrl
from pyrula.workflows.stores.valkey.wire import (
    Argument,
    Connection,
    NotSent,
    Reply,
    ServerError,
    WireError,
)

# A server that answers one of these at set-up will serve later; any other error is a refusal.
_NOT_YET = {"LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"}
_FULL = "ERR max number of clients"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How patient a link is; all in seconds."""

    connect: float = 5.0
    idle: float = 5.0
    deadline: float = 5.0
    backoff_first: float = 0.05
    backoff_cap: float = 1.0

    def backoff(self, failures: int) -> float:
        """The wait before the next try after `failures` in a row, with half of it jitter."""
        ceiling = min(self.backoff_cap, self.backoff_first * 2.0 ** min(failures, 16))
        return ceiling * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, never a secret


class Link:
    """A connection to one server that comes back by itself.

    `on_connect(connection, first)` is awaited before traffic is let through; what it raises is
    shown to `ready()` and the connection is dropped. `on_up(first)` and `on_down(reason)` tell the
    owner of each change. `start()` needs a running loop; `close()` must be awaited.

    >>> link = Link(StoreUrl.parse("redis://localhost"))
    >>> link.start()
    >>> await link.ready(5)
    >>> sha = link.script("return ARGV[1]")
    >>> await link.call(b"EVALSHA", sha, 0, "hello")
    b'hello'
    """

    def __init__(
        self,
        url: StoreUrl,
        *,
        on_connect: Callable[[Connection, bool], Awaitable[None]] | None = None,
        on_up: Callable[[bool], None] | None = None,
        on_down: Callable[[str], None] | None = None,
        on_push: Callable[[Reply], None] | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.url = url
        self.ups = 0
        self.problem: Exception | None = None
        self._on_connect = on_connect
        self._on_up = on_up
        self._on_down = on_down
        self._on_push = on_push
        self._timing = timing or Timing()
        self._scripts: dict[bytes, bytes] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin connecting, and keep at it until `close()`."""
        self._connection = Connection()
        self._news = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._keep(), name="valkey link")

    @property
    def up(self) -> bool:
        """Whether a call made now would be sent."""
        return self._connection.lost is None

    @property
    def paused(self) -> bool:
        """Whether the kernel takes no more for now: await `drained()` before more requests."""
        return self._connection.paused

    def script(self, source: str) -> bytes:
        """Register a script for repair when the server forgot it; return the SHA1 for EVALSHA."""
        body = source.encode()
        sha = hashlib.sha1(body, usedforsecurity=False).hexdigest().encode()
        self._scripts[sha] = body
        return sha

    def call(self, *args: Argument) -> asyncio.Future[Reply]:
        """`Connection.call` on the current connection; `NotSent` at once while down.

        EVALSHA is repaired on NOSCRIPT when written `b"EVALSHA", <what script() gave>, …`.
        """
        return self._connection.call(*args)

    def send(self, *args: Argument) -> asyncio.Future[Reply]:
        """`Connection.send` on the current connection: in the kernel when it returns."""
        return self._connection.send(*args)

    def flush(self) -> None:
        """Give everything queued so far to the kernel now."""
        self._connection.flush()

    async def drained(self) -> None:
        """Return once the connection takes requests without piling them up, or is lost."""
        await self._connection.drained()

    async def ready(self, timeout: float) -> None:
        """Return once up. After `timeout` seconds raise `NotSent` naming what stands in the way.

        A refusal (wrong password, no such database, what `on_connect` raised) is raised at once:
        waiting does not mend it, though the link goes on trying.
        """
        try:
            async with asyncio.timeout(timeout):
                while not self.up:
                    if self.problem is not None and not _may_pass(self.problem):
                        raise self.problem
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            why = self.problem or "no answer yet"
            raise NotSent(
                f"expected {self.url.safe()} to answer within {timeout:g} s; last: {why}"
            ) from None

    async def close(self) -> None:
        """Stop; calls in flight fail with `OutcomeUnknown`. Safe to call twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    async def _keep(self) -> None:
        failures = 0
        while True:
            try:
                connection = await self._connect()
            except Exception as error:  # noqa: BLE001 - any failure is told to ready() and retried
                self.problem = error
                self._news.set()
                await asyncio.sleep(self._timing.backoff(failures))
                failures += 1
                continue
            failures = 0
            self._announce(connection)
            try:
                await self._watch(connection)
            finally:
                await _end(connection, "the link was closed")
            self.problem = NotSent(connection.lost or "")
            if self._on_down is not None:
                asyncio.get_running_loop().call_soon(self._on_down, connection.lost or "")

    def _announce(self, connection: Connection) -> None:
        first = self.ups == 0
        self.ups += 1
        self.problem = None
        self._connection = connection
        self._news.set()
        if self._on_up is not None:
            # By the loop, so that a fault in the owner's callback can't end reconnection.
            asyncio.get_running_loop().call_soon(self._on_up, first)

    async def _connect(self) -> Connection:
        try:
            async with asyncio.timeout(self._timing.connect):
                connection = await self._open()
                try:
                    await self._introduce(connection)
                    if self._on_connect is not None:
                        await self._on_connect(connection, self.ups == 0)
                except BaseException:
                    await _end(connection, "set-up failed")
                    raise
        except TimeoutError:
            raise NotSent(f"no answer within {self._timing.connect:g} s") from None
        return connection

    async def _open(self) -> Connection:
        """A connection without a login yet. If this fails the loop lets go of it, not we.

        (uvloop then never calls `connection_lost`, so waiting for that would be for ever.)
        """
        loop = asyncio.get_running_loop()
        connection = Connection(self._scripts, self._on_push)
        url = self.url
        if url.path:
            await loop.create_unix_connection(lambda: connection, url.path)
        else:
            await loop.create_connection(
                lambda: connection, url.host, url.port, ssl=url.ssl_context()
            )
        return connection

    async def _introduce(self, connection: Connection) -> None:
        requests: list[asyncio.Future[Reply]] = []
        if self.url.password is not None:
            requests.append(_log_in(connection, self.url.user, self.url.password))
        if self.url.db:
            requests.append(connection.call(b"SELECT", self.url.db))
        # Only a courtesy to who reads CLIENT LIST; an ACL may deny it.
        connection.call(b"CLIENT", b"SETNAME", b"pyrula")
        requests.append(connection.call(b"PING"))
        for request in requests:
            await request

    async def _watch(self, connection: Connection) -> None:
        """Return when the connection is lost, or silent although it was asked for a sign of life.

        The deadline is waited for in two looks: after the loop itself was blocked a timer can fire
        before the socket is read, and the second look then finds the reply.
        """
        while connection.lost is None:
            heard = connection.heard
            await asyncio.wait({connection.closed}, timeout=self._timing.idle)
            if connection.heard != heard or connection.lost is not None:
                continue
            connection.ping()
            for _ in range(2):
                await asyncio.wait({connection.closed}, timeout=self._timing.deadline / 2)
                if connection.heard != heard:
                    break
            else:
                connection.fail(f"no answer within {self._timing.deadline:g} s")


def _log_in(connection: Connection, user: str | None, password: Secret) -> asyncio.Future[Reply]:
    """Its frame is gone when the refusal is raised: a traceback may show the locals of the rest."""
    login = [user, password.reveal()] if user else [password.reveal()]
    return connection.call(b"AUTH", *login)


async def _end(connection: Connection, reason: str) -> None:
    """Fail what is in flight and wait until the transport is gone, so that nothing leaks."""
    connection.fail(reason)
    await asyncio.wait({connection.closed})


def _may_pass(problem: Exception) -> bool:
    if isinstance(problem, ServerError):
        return problem.code in _NOT_YET or problem.message.startswith(_FULL)
    return isinstance(problem, WireError | OSError)
