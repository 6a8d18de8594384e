"""A member's hints: a subscription to its channel, decoded.

Owns the listener. Refuses to be relied on: where the server denies pub/sub it is degraded for good,
and after each gap its owner is told to look for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pyrula.workflows.stores.base import Hint
from pyrula.workflows.stores.valkey import decode
from pyrula.workflows.stores.valkey.pubsub import Subscription
from pyrula.workflows.stores.valkey.url import StoreUrl

SUBSCRIBE_WITHIN_S = 5.0


class ValkeyListener:
    """A live subscription to one member's hints."""

    def __init__(
        self, url: StoreUrl, on_hint: Callable[[Hint], None], on_gap: Callable[[], None]
    ) -> None:
        self._on_hint = on_hint
        self._on_gap = on_gap
        self._closed = False
        self._subscription = Subscription(url, on_message=self._heard, on_gap=self._missed)

    @property
    def degraded(self) -> bool:
        """True while hints can't arrive (denied or disconnected) and polling must do."""
        return not self._subscription.listening

    async def open(self, channel: str) -> None:
        """Subscribe; acknowledged when this returns, unless the server doesn't answer or denies.

        Then the listener is degraded, until a later contact mends it.
        """
        self._subscription.start()
        try:
            async with asyncio.timeout(SUBSCRIBE_WITHIN_S):
                await self._subscription.subscribe(channel)
        except TimeoutError:
            pass  # degraded, until the server is there
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop listening; no callback comes after it returns."""
        self._closed = True
        await self._subscription.close()

    def _heard(self, channel: bytes, payload: bytes) -> None:
        hint = decode.hint(payload)
        if hint is not None and not self._closed:
            self._on_hint(hint)

    def _missed(self) -> None:
        if not self._closed:
            self._on_gap()
