"""How a context call is recognised again on replay.

Owns structural identity: the path of leg indices and the call's index in its leg (`"3"` on the main
line, `"3.0.1"` for the second call in the first leg of the gather at 3), plus kind, name and input
hash. Never by completion order, so legs with random latencies replay to the same identities.
"""

from __future__ import annotations

import hashlib
import random
import uuid


class Leg:
    """One line of execution of a body: numbers its calls and keeps its time.

    `now_ms` is the store time of the newest event this leg has seen; legs of a gather see their own
    only, so it does not depend on which of them was faster. `in_step` while user code of a step
    runs, which may not use the context.
    """

    __slots__ = ("_next", "_prefix", "in_step", "now_ms")

    def __init__(self, prefix: str, now_ms: int) -> None:
        self._prefix = prefix
        self._next = 0
        self.now_ms = now_ms
        self.in_step = False

    def next_path(self) -> str:
        """The path of the next call in this leg."""
        path = f"{self._prefix}{self._next}"
        self._next += 1
        return path

    def saw(self, at_ms: int) -> None:
        """An event of store time `at_ms` reached this leg."""
        self.now_ms = max(self.now_ms, at_ms)

    @property
    def is_main(self) -> bool:
        """Whether this is the body itself, and not a leg of a gather."""
        return not self._prefix


NO_INPUTS = "0"


def input_hash(raw: bytes) -> str:
    """16 hex digits that stand for the encoded inputs of a step."""
    return hashlib.blake2b(raw, digest_size=8).hexdigest()


def _seed(run_id: str, path: str, what: str) -> bytes:
    return hashlib.blake2b(f"{run_id}\0{path}\0{what}".encode(), digest_size=16).digest()


def derived_random(run_id: str, path: str) -> random.Random:
    """A generator that depends on run and path alone."""
    return random.Random(_seed(run_id, path, "random"))  # noqa: S311  replayable, not secret


def derived_uuid(run_id: str, path: str) -> uuid.UUID:
    """A version 4 UUID that depends on run and path alone."""
    return uuid.UUID(bytes=_seed(run_id, path, "uuid"), version=4)
