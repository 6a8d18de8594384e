"""The channel between parent and child: which messages exist, and how they cross.

Owns one SOCK_SEQPACKET pair a child, non-blocking at both ends, one JSON object a message. A peer
that doesn't read never blocks the other: what doesn't fit waits in a bounded outbox. Refuses messages
of unknown kind or over the size limit. End of file means the peer is gone.
"""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pyrula.supervisor.page import Page

MAX_MESSAGE = 128 * 1024
MAX_OUTBOX = 1_000

FromChild = Literal["ready", "boot_failed", "stats", "settled", "draining"]
ToChild = Literal["settle", "hint", "tick"]
KINDS = frozenset(("ready", "boot_failed", "stats", "settled", "draining", "settle", "hint", "tick"))


@dataclass(frozen=True, kw_only=True)
class ChildSetup:
    """All that a child is told, handed over in memory at the fork (no secret reaches an argv).

    `options` are worker options as text, `workflows` are `mod[:name]`. `settle_first` holds death
    certificates to act on before the first claim.
    """

    slot: int
    incarnation: str
    channel: Channel
    page: Page
    store_url: str
    namespace: str
    shard_count: int | None
    workflows: tuple[str, ...]
    app_dir: str
    options: Mapping[str, str]
    loop: Literal["auto", "uvloop", "asyncio"]
    boot_budget_s: float
    settle_first: tuple[dict[str, Any], ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict[str, str])


class Channel:
    """One end of a pair; `fileno` can be polled.

    >>> parent, child = Channel.pair()
    >>> child.send("ready", shards={})
    >>> parent.receive()
    [{'kind': 'ready', 'shards': {}}]
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._outbox: deque[bytes] = deque()
        self.closed = False
        self.dropped = 0

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Two connected ends."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._socket.fileno()

    def send(self, kind: str, **fields: Any) -> None:
        """Send, or keep for the next `flush`; raises `ValueError` for what the table refuses."""
        raw = json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode()
        if kind not in KINDS or len(raw) > MAX_MESSAGE:
            raise ValueError(f"expected a known message of at most {MAX_MESSAGE} bytes: {kind}")
        if len(self._outbox) >= MAX_OUTBOX:
            self._outbox.popleft()
            self.dropped += 1
        self._outbox.append(raw)
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the peer has room."""
        while self._outbox and not self.closed:
            try:
                self._socket.send(self._outbox[0])
            except BlockingIOError:
                return
            except OSError:
                self.closed = True
                return
            self._outbox.popleft()

    def receive(self) -> list[dict[str, Any]]:
        """All messages that have arrived; sets `closed` at end of file."""
        messages: list[dict[str, Any]] = []
        while not self.closed:
            try:
                raw = self._socket.recv(MAX_MESSAGE)
            except BlockingIOError:
                break
            except OSError:
                raw = b""
            if not raw:
                self.closed = True
                break
            message = _decoded(raw)
            if message is not None:
                messages.append(message)
        return messages

    def close(self) -> None:
        """Close this end."""
        self.closed = True
        self._socket.close()


def _decoded(raw: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(raw)
    except ValueError:
        return None
    known = isinstance(message, dict) and message.get("kind") in KINDS
    return message if known else None
