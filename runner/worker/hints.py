"""Listening for hints.

Owns the subscription to this worker's channel: it is made again until it stands, and from then on
mends itself. Hints only save time, so nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Callable

from pyrula.workflows.stores.base import Hint, Listener
from pyrula.workflows.worker.core import Core
from pyrula.workflows.worker.loops import UNTIL_WOKEN_S, Loop


class HintLoop(Loop):
    """Subscribes once; `on_gap` is called when hints may have been missed, also before that."""

    name = "hints"

    def __init__(
        self, core: Core, on_hint: Callable[[Hint], None], on_gap: Callable[[], None]
    ) -> None:
        super().__init__(core)
        self._on_hint = on_hint
        self._on_gap = on_gap
        self._listener: Listener | None = None

    def pause(self) -> float:
        """There is nothing to do again."""
        return UNTIL_WOKEN_S

    async def tick(self) -> None:
        """Subscribe if not yet subscribed."""
        if self._listener is None:
            store, member = self.core.store, self.core.incarnation
            self._listener = await store.listen(member, self._on_hint, self._on_gap)
            self._on_gap()

    async def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            await self._listener.close()
