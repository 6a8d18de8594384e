"""How the store calls its server: one request, repeated after a lost answer, errors in our words.

Owns the rule that a transition may be repeated because it is idempotent: a request that was not
sent or whose outcome is unknown is sent again as soon as the link is back, for about a second; then
the caller hears `StoreUnavailable`. A server that can't take writes now (LOADING, OOM, READONLY, …)
is unavailable too, never a failure of a run.

Refuses to repeat what the server answered, and to let a request pass to a server whose store id is
not ours: the link hears of it before traffic does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pyrula.workflows.stores.errors import (
    PyrulaError,
    StoreError,
    StoreUnavailable,
    WrongServer,
)
from pyrula.workflows.stores.valkey.codes import refusal
from pyrula.workflows.stores.valkey.config import cluster_not_supported
from pyrula.workflows.stores.valkey.link import Link
from pyrula.workflows.stores.valkey.url import StoreUrl
from pyrula.workflows.stores.valkey.wire import (
    Argument,
    Connection,
    NotSent,
    OutcomeUnknown,
    Reply,
    ServerError,
)

PATIENCE_S = 1.0

_AWAY = frozenset(
    {
        "LOADING",
        "BUSY",
        "MISCONF",
        "OOM",
        "READONLY",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "NOREPLICAS",
        "MASTERDOWN",
    }
)
_NOT_ALLOWED = frozenset({"NOAUTH", "WRONGPASS", "NOPERM"})
_CLUSTER = frozenset({"MOVED", "ASK", "CROSSSLOT"})

Request = tuple[Argument, ...]


class Caller:
    """One link to the server and the script on it.

    `source` is the script build that fits the server; it is set when the server is known.
    """

    def __init__(
        self,
        url: StoreUrl,
        *,
        on_connect: Callable[[Connection, bool], Awaitable[None]] | None = None,
        on_up: Callable[[bool], None] | None = None,
    ) -> None:
        self.url = url
        self.sha = b""
        self.link = Link(url, on_connect=on_connect, on_up=on_up)

    async def open(self, timeout: float) -> None:
        """Connect within `timeout` seconds. Raises `WrongServer`, `StoreUnavailable` and more."""
        self.link.start()
        try:
            await self.link.ready(timeout)
        except NotSent as error:
            await self.link.close()
            raise unreachable(self.url, self.link.problem or error) from None
        except ServerError as error:
            await self.link.close()
            raise server_refusal(error, self.url) from None
        except BaseException:
            await self.link.close()
            raise

    async def close(self) -> None:
        """Let the connection go."""
        await self.link.close()

    def use_script(self, source: str) -> None:
        """Call this script from now on; the link repairs it when the server forgot it."""
        self.sha = self.link.script(source)

    def request(self, operation: bytes, keys: tuple[str, ...], *args: Argument) -> Request:
        """The command that runs one transition."""
        return (b"EVALSHA", self.sha, len(keys), *keys, operation, *args)

    async def run(
        self, operation: bytes, keys: tuple[str, ...], *args: Argument, what: str = "the store"
    ) -> Reply:
        """Run one transition; a negative reply raises what it stands for, about `what`."""
        reply = await self.answer(self.request(operation, keys, *args))
        if type(reply) is int and reply < 0:
            raise refusal(reply, what)
        return reply

    async def command(self, *args: Argument) -> Reply:
        """Run one plain command, which must be harmless when repeated."""
        return await self.answer(args)

    async def answer(self, request: Request, sent: asyncio.Future[Reply] | None = None) -> Reply:
        """Send, and send again after a lost answer until patience ends.

        `sent` is the future of the request if it is on its way already.
        """
        try:
            return await (sent or self.link.call(*request))
        except (NotSent, OutcomeUnknown) as error:
            return await self.again(request, error)
        except ServerError as error:
            raise server_refusal(error, self.url) from None

    async def again(self, request: Request, lost: NotSent | OutcomeUnknown) -> Reply:
        """Go on with a request whose first answer was lost."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        unknown = isinstance(lost, OutcomeUnknown)
        last: Exception = lost
        while (left := deadline - loop.time()) > 0:
            try:
                await self.link.ready(left)
                return await self.link.call(*request)
            except NotSent as error:
                last = error
            except OutcomeUnknown as error:
                last, unknown = error, True
            except ServerError as error:
                raise server_refusal(error, self.url) from None
        raise StoreUnavailable(
            f"expected {self.url.safe()} to answer, found it away for {PATIENCE_S:g} s ({last}); "
            "the store goes on trying, nothing is lost",
            applied_unknown=unknown,
        )


def server_refusal(error: ServerError, url: StoreUrl) -> PyrulaError:
    """The exception for an error that the server answered."""
    if error.code in _AWAY or error.message.startswith("ERR max number of clients"):
        return StoreUnavailable(
            f"expected {url.safe()} to take requests, found it answering {error.message!r}; "
            "runs go on once it does; repeat a refused submit then",
            detail={"server_code": error.code},
        )
    if error.code in _NOT_ALLOWED or "AUTH" in error.message:
        return WrongServer(
            f"expected {url.safe()} to let this user in, found {error.code}; check user, "
            "password and ACL of the store URL",
            code="store_auth",
        )
    if "DB index" in error.message:
        return WrongServer(
            f"expected the database number of {url.safe()} to exist there, found that it doesn't; "
            "correct it, or use a namespace to keep products apart",
            code="store_wrong_database",
        )
    if error.code in _CLUSTER:
        return cluster_not_supported(f"{url.safe()} redirecting to another node")
    return StoreError(
        f"expected {url.safe()} to run a transition, found it refused: {error.message}",
        code="store_refused",
    )


def unreachable(url: StoreUrl, problem: Exception) -> PyrulaError:
    """The exception for a server that could not be reached or understood at all."""
    if isinstance(problem, PyrulaError):
        return problem
    if "not RESP" in str(problem):
        return WrongServer(
            f"expected a Valkey or Redis server at {url.safe()}, found one that speaks another "
            "protocol; check host and port of the store URL"
        )
    return StoreUnavailable(
        f"expected a server at {url.safe()}, found none that answers ({problem}); "
        "start it or check the store URL",
    )
