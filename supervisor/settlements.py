"""Deaths on their way to being settled, and who has been asked.

Owns which certificates are pending, kept on disk until acknowledged. Each is sent to one child at a
time, to the next if no answer comes in 500 ms, and round again ever more slowly: settling twice is
harmless, not settling leaves runs locked. Refuses to know how a child settles.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyrula.supervisor.certificate import Certificate
from pyrula.supervisor.child import Child
from pyrula.supervisor.graveyard import Graveyard
from pyrula.supervisor.link import Settle

ACKNOWLEDGE_S = 0.5
SLOWEST_S = 10.0


@dataclass(kw_only=True)
class Settlement:
    """A certificate that nobody has acknowledged.

    `waits_for` is the child asked last, until `ask_again_at` in monotonic seconds.
    """

    certificate: Certificate
    waits_for: str | None = None
    asked: set[str] = field(default_factory=set[str])
    patience_s: float = ACKNOWLEDGE_S
    ask_again_at: float = 0.0


class Settlements:
    """Pending certificates, those of an earlier supervisor of this store included."""

    def __init__(self, graveyard: Graveyard) -> None:
        self._graveyard = graveyard
        left_over = graveyard.left_over(time.time())
        self._pending = {one.id: Settlement(certificate=one) for one in left_over}

    def add(self, certificate: Certificate) -> None:
        """A death to settle."""
        self._graveyard.keep(certificate)
        self._pending[certificate.id] = Settlement(certificate=certificate)

    def acknowledged(self, certificate_id: str) -> None:
        """It is settled on all shards."""
        self._pending.pop(certificate_id, None)
        self._graveyard.forget(certificate_id)

    def certificates(self) -> tuple[Certificate, ...]:
        """What is pending."""
        return tuple(settlement.certificate for settlement in self._pending.values())

    def ask(self, able: Sequence[Child], now: float) -> None:
        """Send what is due to a child of `able`; the one whose loop turned last goes first."""
        if not able:
            return
        by_beat = sorted(able, key=lambda child: child.page.reader().loop_beat, reverse=True)
        for settlement in self._pending.values():
            if now >= _due(settlement, able):
                self._ask_one(settlement, by_beat, now)

    def next_due(self, able: Sequence[Child]) -> float | None:
        """When `ask` has something to do, None if never."""
        if not able:
            return None
        return min((_due(settlement, able) for settlement in self._pending.values()), default=None)

    @staticmethod
    def _ask_one(settlement: Settlement, able: Sequence[Child], now: float) -> None:
        fresh = [child for child in able if child.incarnation not in settlement.asked]
        if not fresh:
            settlement.asked.clear()
            settlement.patience_s = min(SLOWEST_S, settlement.patience_s * 2)
            fresh = list(able)
        settlement.waits_for = fresh[0].incarnation
        settlement.asked.add(fresh[0].incarnation)
        settlement.ask_again_at = now + settlement.patience_s
        fresh[0].channel.send(Settle(certificate=settlement.certificate))


def _due(settlement: Settlement, able: Sequence[Child]) -> float:
    """When to ask: at once if the child asked last can't answer any more, or none was asked."""
    waits = any(child.incarnation == settlement.waits_for for child in able)
    return settlement.ask_again_at if waits else 0.0
