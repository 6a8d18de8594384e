"""The link between parent and child: messages, health frames, what a child is born with.

Owns the message kinds (the table below), their JSON form, and both ends of the channel, a
SOCK_SEQPACKET pair whose packets keep their boundaries, so that a child killed in mid-write leaves
no half line. Neither end ever blocks. What doesn't fit the socket waits in order; what is only news
(`NEWS`) is dropped instead, since newer news comes. A message too large for one packet is split
along its map into several of its kind (`Hint`, `Settled`: the last has `more=False`), or refused
with `MessageTooLarge`.

| kind | from | says |
| --- | --- | --- |
| `Ready` | child | serves; sent before its first claim |
| `BootFailed` | child | will never be ready; it exits with `CHILD_BOOT_FAILED` next |
| `Stats` | child | about every second and on change |
| `Settled` | child | the certificate is settled on all shards; these got runs |
| `Draining` | child | claims no more, whoever asked it to stop |
| `Settle` | parent | settle this certificate and answer `Settled`; may be repeated |
| `Hint` | parent | these shards got runs: look there now |
| `Tick` | parent | look everywhere now |
| `Drain` | parent | stop as at SIGTERM |

End of file on the channel means that the parent is gone: the child exits at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal

import msgspec

from pyrula.supervisor.certificate import Certificate, Frame
from pyrula.supervisor.page import PageWriter

MAX_PACKET = 96 * 1024  # half of what a socket takes by default, so that one always fits
MAX_SENTENCE = 2 * 1024  # what is left of a boot failure that is too large
MAX_FRAMES = 10
MAX_BATCH = 64


class Ready(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="ready"):
    """The child serves, from the store with this id; later children must find the same one."""

    store_id: str = ""


class BootFailed(msgspec.Struct, frozen=True, kw_only=True, tag="boot_failed"):
    """Why a child can't start. `exit` is the supervisor's exit code if no child ever starts.

    `frames` are of the user's own modules, outermost first.
    """

    code: str
    message: str
    exit: Literal[1, 2, 4]
    frames: tuple[Frame, ...] = ()


class Stats(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    """How the child is: shards served per workflow, runs in flight, loop lag in milliseconds."""

    shards: dict[str, int] = {}
    runs: int = 0
    loop_lag_p50_ms: float | None = None
    loop_lag_p99_ms: float | None = None


class Settled(msgspec.Struct, frozen=True, kw_only=True, tag="settled"):
    """The certificate `id` is settled everywhere; `got`: workflow → shards that got runs."""

    id: str
    got: dict[str, list[int]] = {}
    more: bool = False


class Draining(msgspec.Struct, frozen=True, tag="draining"):
    """The child claims no more."""


class Settle(msgspec.Struct, frozen=True, kw_only=True, tag="settle"):
    """Settle this death. Repeatable: a second one while the first is under way changes nothing."""

    certificate: Certificate


class Hint(msgspec.Struct, frozen=True, kw_only=True, tag="hint"):
    """Workflow → shards that got runs."""

    got: dict[str, list[int]]


class Tick(msgspec.Struct, frozen=True, tag="tick"):
    """Something changed: poll now."""


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Drain and exit 0."""


Message = Ready | BootFailed | Stats | Settled | Draining | Settle | Hint | Tick | Drain
NEWS = (Stats, Hint, Tick)
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class MessageTooLarge(ValueError):
    """A message that can't be split doesn't fit one packet; nothing was sent."""


def packets(message: Message, limit: int = MAX_PACKET) -> list[bytes]:
    """A message as the packets that carry it, each at most `limit` bytes.

    >>> packets(Tick())
    [b'{"type":"tick"}']
    """
    data = msgspec.json.encode(message)
    if len(data) <= limit:
        return [data]
    if isinstance(message, BootFailed):
        return packets(_shortened(message), limit)
    if isinstance(message, Hint | Settled) and (halves := _halves(message.got)):
        first, second = halves
        if isinstance(message, Settled):
            head: Message = Settled(id=message.id, got=first, more=True)
            tail: Message = Settled(id=message.id, got=second, more=message.more)
        else:
            head, tail = Hint(got=first), Hint(got=second)
        return packets(head, limit) + packets(tail, limit)
    raise MessageTooLarge(
        f"expected a {type(message).__name__} of at most {limit} bytes, found {len(data)}"
    )


def _halves(
    got: Mapping[str, list[int]],
) -> tuple[dict[str, list[int]], dict[str, list[int]]] | None:
    """Two maps that together say the same."""
    names = sorted(got)
    if len(names) > 1:
        middle = len(names) // 2
        return {n: got[n] for n in names[:middle]}, {n: got[n] for n in names[middle:]}
    if names and len(got[names[0]]) > 1:
        shards = got[names[0]]
        middle = len(shards) // 2
        return {names[0]: shards[:middle]}, {names[0]: shards[middle:]}
    return None


def _shortened(failure: BootFailed) -> BootFailed:
    """The same failure with a sentence and frames that fit; a boot failure must get through."""
    if len(failure.message) <= MAX_SENTENCE and len(failure.frames) <= MAX_FRAMES:
        raise MessageTooLarge("expected a boot failure with short file names")
    return BootFailed(
        code=failure.code,
        message=failure.message[:MAX_SENTENCE],
        exit=failure.exit,
        frames=failure.frames[-MAX_FRAMES:],
    )


class Channel:
    """One end of the channel.

    `send` puts a message on its way; while `pending` is true, call `flush` whenever the socket is
    writable. `receive` gives what has come; `closed` is true once the other side is gone. Nothing
    here blocks or raises for a peer that is slow or dead.

    >>> parent, child = Channel.pair()
    >>> child.send(Ready())
    >>> parent.receive()
    [Ready()]
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        self._socket = sock
        self._waiting: deque[bytes] = deque()
        self.closed = False

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Both ends; the parent keeps the first, the child the second."""
        first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(first), cls(second)

    def fileno(self) -> int:
        """The descriptor, for a selector or a loop."""
        return self._socket.fileno()

    @property
    def pending(self) -> bool:
        """Whether something waits for the socket to become writable."""
        return bool(self._waiting)

    def send(self, message: Message) -> None:
        """Send, or keep in order until `flush`; news is dropped while others wait.

        Raises `MessageTooLarge`.
        """
        if self.closed or (self._waiting and isinstance(message, NEWS)):
            return
        news = isinstance(message, NEWS)
        self._waiting.extend(packets(message))
        self.flush()
        if news:
            self._waiting.clear()  # nothing else waited before it

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        while self._waiting and not self.closed:
            try:
                self._socket.send(self._waiting[0], socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError:
                self._waiting.clear()
                self.closed = True
                return
            self._waiting.popleft()

    def receive(self) -> list[Message]:
        """What has come, oldest first, at most `MAX_BATCH`; what can't be read is skipped.

        The other side is ours and of the same version, but user code runs in there too.
        """
        found: list[Message] = []
        while not self.closed and len(found) < MAX_BATCH:
            try:
                data = self._socket.recv(MAX_PACKET)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.closed = True
                break
            with contextlib.suppress(msgspec.DecodeError):
                found.append(_decoder.decode(data))
        return found

    def readable(self) -> bool:
        """Whether `receive` has something to do."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not self.closed and bool(poll.poll(0))

    def close(self) -> None:
        """Close this end; never `shutdown`, which would reach through to a forked copy."""
        self.closed = True
        self._waiting.clear()
        self._socket.close()


@dataclass(frozen=True, kw_only=True)
class HealthFrame:
    """How the loop was about 10 times a second.

    `at_ns` on the monotonic clock, the lateness of the loop's timer, runs in flight, and how many
    frames were dropped before this one because nobody read them.
    """

    at_ns: int
    loop_lag_us: int
    runs: int
    dropped: int = 0


_FRAME = struct.Struct("=QIIQ")


class HealthWriter:
    """The child's end of the health pipe: a full pipe counts, and never holds the child up."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._dropped = 0

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def write(self, *, at_ns: int, loop_lag_us: int, runs: int) -> None:
        """Send one frame, whole or not at all (a pipe takes up to 4 KiB atomically)."""
        frame = _FRAME.pack(at_ns, min(loop_lag_us, 2**32 - 1), runs, self._dropped)
        try:
            os.write(self._fd, frame)
        except OSError:
            self._dropped += 1


class HealthReader:
    """The parent's end; read on the parent's tick, not polled."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def read(self) -> list[HealthFrame]:
        """All frames since the last call."""
        try:
            data = os.read(self._fd, 64 * 1024)
        except OSError:
            return []
        whole = len(data) - len(data) % _FRAME.size
        return [
            HealthFrame(at_ns=at_ns, loop_lag_us=lag, runs=runs, dropped=dropped)
            for at_ns, lag, runs, dropped in _FRAME.iter_unpack(data[:whole])
        ]


@dataclass(frozen=True, kw_only=True)
class ChildSetup:
    """All that the child entry `main(setup) -> exit code` needs; called after the fork.

    When it is called: signals are unblocked; TERM, INT and QUIT have their default action, so that
    a stop during boot ends the process at once (install handlers before `Ready`); HUP, USR2, TTIN
    and TTOU do nothing; USR1 dumps the stack. The process has its own group, dies with the parent,
    has a title, and structlog lines carry its slot. Phase is BOOTING.

    The entry sends `Ready` before it claims, or `BootFailed` and returns `CHILD_BOOT_FAILED`. It
    settles `settle_first` before its first claim and answers each with `Settled`: these are deaths
    that nobody could settle yet. A store that can't be reached is tried again for
    `boot_budget_s` seconds, then reported with exit 4. `options` are worker options as text, to be
    validated by the child, `ready_by` is monotonic. `parent_pid` is gone when `os.getppid()`
    differs.
    """

    slot: int
    incarnation: str
    parent_pid: int
    channel: Channel
    page: PageWriter
    health: HealthWriter
    store_url: str = field(repr=False)  # may hold a password
    namespace: str = "default"
    store_id: str | None = None  # what the server must carry; None: whatever it carries
    shard_count: int | None = None
    workflows: tuple[str, ...] = ()
    app_dir: str = "."
    loop: Literal["auto", "uvloop", "asyncio"] = "auto"
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    settle_first: tuple[Certificate, ...] = ()
    ready_by: float = field(default_factory=lambda: monotonic() + 60.0)

    @property
    def boot_budget_s(self) -> float:
        """Seconds that are left to get ready, at least one."""
        return max(1.0, self.ready_by - monotonic())
