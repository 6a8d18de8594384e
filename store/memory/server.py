"""The memory store's server: all shards, the registry, and who listens.

Owns the state that several `MemoryStore`s of one process share, as several processes share a
server, and the rule that a transition is one atomic step: a lock around it, one reading of the
clock, hints delivered when it is done. Refuses work while it is taken down.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from pyrula.workflows.stores.base import Hint, Registration, Reservation
from pyrula.workflows.stores.errors import ConfigurationError, StoreEmptied, StoreUnavailable
from pyrula.workflows.stores.memory.records import Shard
from pyrula.workflows.stores.seams import Clock, Ids, Seams


@dataclass(kw_only=True, slots=True)
class Ear:
    """One subscription; its callbacks run on the loop that made it."""

    member: str
    on_hint: Callable[[Hint], None]
    on_gap: Callable[[], None]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    closed: bool = False

    def hear(self, hint: Hint) -> None:
        """Pass the hint on, unless the subscription was closed meanwhile."""
        if not self.closed:
            self.on_hint(hint)

    def miss(self) -> None:
        """Say that hints may have been missed."""
        if not self.closed:
            self.on_gap()


class MemoryServer:
    """Keeps runs for as long as the process lives.

    `clock.wall()` is the store's time.

    >>> MemoryServer().contacts
    1
    """

    def __init__(self, *, clock: Clock | None = None, ids: Ids | None = None) -> None:
        seams = Seams()
        self.clock = clock or seams.clock
        self.store_id = (ids or seams.ids).token()
        self.registry: dict[str, Registration] = {}
        self.shards: dict[tuple[str, int], Shard] = {}
        self.reservations: dict[str, Reservation] = {}
        self.contacts = 1
        self.up = True
        self._ears: list[Ear] = []
        self._awaiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        # Renewers call from threads of their own.
        self._lock = threading.RLock()

    def now_ms(self) -> int:
        """Store time."""
        return int(self.clock.wall() * 1_000)

    @contextlib.contextmanager
    def transition(self, workflow: str, number: int) -> Generator[tuple[Shard, int], None, None]:
        """One atomic step in one shard; gives the shard and store time."""
        with self._lock:
            self.check_up()
            shard = self.shards.get((workflow, number))
            if shard is None:
                shard = self.shards[workflow, number] = Shard(workflow=workflow, number=number)
            yield shard, self.now_ms()
            hints, shard.outbox = shard.outbox, []
            for member, hint in hints:
                self._deliver(member, hint)

    def check_up(self) -> None:
        """Raise `StoreUnavailable` while the server is down."""
        if not self.up:
            raise StoreUnavailable("expected the memory store to answer, found it taken down")

    def check_registered(self, workflow: str, number: int) -> None:
        """Raise `StoreEmptied` for a shard that was never registered."""
        known = self.registry.get(workflow)
        if known is None or not 0 <= number < known.shard_count:
            raise StoreEmptied(
                f"expected shard {number} of {workflow} to be registered, found it missing; "
                "register the name first, and if it was, the store lost its data"
            )

    def register(self, workflow: str, shard_count: int, *, serving: bool) -> Registration:
        """Record the name, or adopt what is recorded; see `Store.register`."""
        with self._lock:
            self.check_up()
            known = self.registry.get(workflow)
            recorded = known.shard_count if known else shard_count
            if serving and recorded != shard_count:
                raise ConfigurationError(
                    f"expected shard_count {recorded}, which {workflow} is recorded with, "
                    f"found {shard_count}; drain the name first or use the recorded count",
                    code="shard_count_mismatch",
                    detail={"recorded": recorded, "configured": shard_count},
                )
            served = serving or (known is not None and known.served)
            self.registry[workflow] = Registration(
                shard_count=recorded, store_id=self.store_id, served=served
            )
            return self.registry[workflow]

    def reserve_key(self, key_id: str, reservation: Reservation) -> Reservation:
        """Tie the key, once; kept for as long as the process lives."""
        with self._lock:
            self.check_up()
            return self.reservations.setdefault(key_id, reservation)

    def shards_of(self, workflow: str) -> list[int]:
        """The numbers of a name's shards that hold anything."""
        with self._lock:
            return [number for name, number in self.shards if name == workflow]

    def go_down(self) -> None:
        """Stop answering: every call raises `StoreUnavailable`, hints get lost."""
        with self._lock:
            self.up = False

    def come_up(self) -> None:
        """Answer again; contact is made anew and listeners hear of the gap."""
        with self._lock:
            self.up = True
            self.contacts += 1
            for ear in self._ears:
                _on_loop(ear.loop, ear.miss)
            for loop, event in self._awaiting:
                _on_loop(loop, event.set)
            self._awaiting.clear()

    async def next_contact(self, seen: int) -> int:
        """Return `contacts` once it is greater than `seen`."""
        while True:
            with self._lock:
                if self.contacts > seen:
                    return self.contacts
                made = asyncio.Event()
                self._awaiting.append((asyncio.get_running_loop(), made))
            await made.wait()

    def attach(self, ear: Ear) -> None:
        """Deliver hints for its member from now on."""
        with self._lock:
            self.check_up()
            self._ears.append(ear)

    def detach(self, ear: Ear) -> None:
        """Deliver no more."""
        with self._lock:
            ear.closed = True
            if ear in self._ears:
                self._ears.remove(ear)

    def _deliver(self, member: str, hint: Hint) -> None:
        for ear in self._ears:
            if ear.member == member:
                _on_loop(ear.loop, ear.hear, hint)


def _on_loop(
    loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: object
) -> None:
    # A listener whose loop is gone can't hear, and a hint may get lost.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *arguments)
