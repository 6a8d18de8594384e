"""Hints from the server: one connection in subscribed mode, beside the hot path.

Owns the channels of this process and their acknowledgements. Messages are hints only: those sent
while the connection was down are lost, so `on_gap` tells the owner to look for itself after each
reconnect. A server or ACL that denies SUBSCRIBE costs one log line and the owner polls.

Refuses to be the only way in which anything is learnt.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import structlog

from pyrula.workflows.stores.valkey.link import Link, Timing
from pyrula.workflows.stores.valkey.url import StoreUrl
from pyrula.workflows.stores.valkey.wire import Connection, Reply, ServerError

_log: structlog.stdlib.BoundLogger = structlog.get_logger("pyrula.store")


class Subscription:
    """Channels of one server; `on_message(channel, payload)` is called on the loop for each.

    `on_gap()` is called after each reconnect once all channels are subscribed again.

    >>> hints = Subscription(url, on_message=lambda channel, payload: print(payload))
    >>> hints.start()
    >>> await hints.subscribe("default:wake:7")
    True
    """

    def __init__(
        self,
        url: StoreUrl,
        *,
        on_message: Callable[[bytes, bytes], None],
        on_gap: Callable[[], None] | None = None,
        timing: Timing | None = None,
    ) -> None:
        self._on_message = on_message
        self._on_gap = on_gap
        self._connection: Connection | None = None
        self._channels: dict[bytes, asyncio.Future[bool]] = {}
        # Channels whose SUBSCRIBE has no answer yet: the server answers in this order.
        self._asked: deque[bytes] = deque()
        self._gap = False
        self._denied = False
        self._closed = False
        self._link = Link(url, on_connect=self._resubscribe, on_push=self._pushed, timing=timing)

    def start(self) -> None:
        """Begin connecting, and keep at it until `close()`."""
        self._link.start()

    @property
    def listening(self) -> bool:
        """Whether the messages of every channel asked for arrive now."""
        answers = self._channels.values()
        acknowledged = all(answer.done() and answer.result() for answer in answers)
        return bool(answers) and acknowledged and self._link.up

    async def close(self) -> None:
        """Stop; whoever still waits for a subscription gets False."""
        self._closed = True
        await self._link.close()
        for answer in self._channels.values():
            if not answer.done():
                answer.set_result(False)

    async def subscribe(self, channel: str) -> bool:
        """True once the server acknowledged: every later message arrives, until the next gap.

        False where the server denies it (then poll) and after `close()`. Waits while the server is
        away; bound it with `asyncio.timeout`.
        """
        if self._closed:
            return False
        name = channel.encode()
        if name not in self._channels:
            self._channels[name] = asyncio.get_running_loop().create_future()
            if self._connection is not None and self._connection.lost is None:
                self._ask(self._connection, name)
        # Shielded: the answer belongs to all who wait for this channel.
        return await asyncio.shield(self._channels[name])

    async def _resubscribe(self, connection: Connection, first: bool) -> None:
        self._connection = connection
        self._asked.clear()
        self._gap = not first
        for channel, answer in self._channels.items():
            if answer.done():
                self._channels[channel] = asyncio.get_running_loop().create_future()
            self._ask(connection, channel)

    def _ask(self, connection: Connection, channel: bytes) -> None:
        self._asked.append(channel)
        connection.post(b"SUBSCRIBE", channel)

    def _pushed(self, reply: Reply) -> None:
        match reply:
            case [b"message", bytes(channel), bytes(payload)]:
                self._on_message(channel, payload)
            case [b"subscribe", *_]:
                self._answered(yes=True)
            case ServerError():
                self._note_denial(reply)
                self._answered(yes=False)
            case _:
                pass  # the answer to a PING

    def _answered(self, *, yes: bool) -> None:
        if not self._asked:
            return
        self._channels[self._asked.popleft()].set_result(yes)
        if self._gap and not self._asked:
            self._gap = False
            if self._on_gap is not None:
                self._on_gap()

    def _note_denial(self, error: ServerError) -> None:
        if not self._denied:
            self._denied = True
            _log.warning("pubsub_denied", code=error.code, fallback="polling")
