"""A store's connections, and who is at the other end.

Owns opening and closing, the checks at first contact, the comparison of the store id at each, and
the count of contacts. Refuses traffic to a server that fails them: the link asks here before
it lets a request through.
"""

from __future__ import annotations

import asyncio

from pyrula.workflows.stores.errors import StoreError
from pyrula.workflows.stores.seams import Seams
from pyrula.workflows.stores.valkey.calls import Caller
from pyrula.workflows.stores.valkey.config import ValkeyConfig
from pyrula.workflows.stores.valkey.functions import script_build
from pyrula.workflows.stores.valkey.keys import Keys
from pyrula.workflows.stores.valkey.registry import meet_store
from pyrula.workflows.stores.valkey.server import ServerInfo, check_server, parse_info, unverified
from pyrula.workflows.stores.valkey.url import StoreUrl
from pyrula.workflows.stores.valkey.wire import Connection, ServerError

OPEN_WITHIN_S = 3.0


class Session:
    """Two connections to one server: `main` for transitions, `bulk` for journal pages."""

    def __init__(self, url: StoreUrl, config: ValkeyConfig, keys: Keys, seams: Seams) -> None:
        self.url = url
        self.store_id = config.store_id or ""
        self.source = script_build().source
        self._config = config
        self._keys = keys
        self._seams = seams
        self._server: ServerInfo | None = None
        self._known = config.store_id or None
        self._main: Caller | None = None
        self._bulk: Caller | None = None
        self._opening = asyncio.Lock()
        self._contact = asyncio.Event()
        self._earlier_contacts = 0

    @property
    def main(self) -> Caller:
        """The connection of the hot path."""
        if self._main is None:
            raise _not_open()
        return self._main

    @property
    def bulk(self) -> Caller:
        """The connection for what is large."""
        if self._bulk is None:
            raise _not_open()
        return self._bulk

    @property
    def contacts(self) -> int:
        """How often contact was made."""
        return self._earlier_contacts + (self._main.link.ups if self._main else 0)

    async def open(self) -> None:
        """Connect and check the server; does nothing while open."""
        # A worker and its client open the store they share at the same time.
        async with self._opening:
            if self._main is None:
                await self._connect()

    async def _connect(self) -> None:
        main = Caller(self.url, on_connect=self._meet, on_up=self._note_contact)
        bulk = Caller(self.url, on_connect=self._meet)
        await main.open(OPEN_WITHIN_S)
        try:
            main.use_script(self.source)
            await bulk.open(OPEN_WITHIN_S)
        except BaseException:
            await main.close()
            raise
        bulk.use_script(self.source)
        self._main, self._bulk = main, bulk

    async def close(self) -> None:
        """Let go of both connections. Safe to call twice."""
        main, bulk, self._main, self._bulk = self._main, self._bulk, None, None
        if main is not None and bulk is not None:
            self._earlier_contacts += main.link.ups
            await main.close()
            await bulk.close()

    async def next_contact(self, seen: int) -> int:
        """Return `contacts` as soon as it is greater than `seen`."""
        while self.contacts <= seen:
            await self._contact.wait()
        return self.contacts

    async def _meet(self, connection: Connection, first: bool) -> None:
        if self._server is None:
            self._server = await self._inspect(connection)
            if not self._server.knows_shebang:
                self.source = script_build().plain
        self.store_id = self._known = await meet_store(
            connection,
            self._keys.store_id(),
            known=self._known,
            fresh=self._seams.ids.token(),
            url=self.url.safe(),
        )

    async def _inspect(self, connection: Connection) -> ServerInfo:
        url = self.url.safe()
        try:
            info: bytes = await connection.call(b"INFO")
        except ServerError as error:
            if error.code != "NOPERM":
                raise
            return unverified(url, "the ACL denies INFO")
        return check_server(
            parse_info(info.decode()), url, allow_eviction=self._config.allow_eviction
        )

    def _note_contact(self, first: bool) -> None:
        self._contact.set()
        self._contact = asyncio.Event()


def _not_open() -> StoreError:
    return StoreError(
        "expected an open store, found one that was not opened or is closed; await open() first",
        code="store_not_open",
    )
