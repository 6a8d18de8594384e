"""The death certificate: what the parent knows about an end, for whoever settles it.

Owns the typed causes, the form and which losses count (protocol rules 20–22). The parent writes a
certificate to its run directory, hands it to a ready child and forgets it once acknowledged;
settling one twice, half, late or by another supervisor changes nothing, since `id` is the
incarnation that ended. Refuses to guess: a run is charged only by a verdict.
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

MAX_STACK_BYTES = 16 * 1024
CHARGES_ONLY_AFTER_S = 600.0  # the tombstone is gone: requeues are not this certificate's any more


class Cause(enum.StrEnum):
    """Why a child is no more."""

    EXIT = "exit"
    SIGNAL = "signal"
    OOM = "oom"
    KILLED = "killed"  # a SIGKILL that nobody here sent: never blames a run
    LOOP_BLOCK = "loop_block"
    GIL_STALL = "gil_stall"
    GIL_HELD_SLEEPING = "gil_held_sleeping"
    BOOT = "boot"
    COMMANDED = "commanded"
    RECYCLED = "recycled"
    EVACUATED = "evacuated"  # alive, but so long blocked that its bystanders go elsewhere


NOT_AN_ACCIDENT = frozenset({Cause.BOOT, Cause.COMMANDED, Cause.RECYCLED, Cause.EVACUATED})


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a stack."""

    file: str
    line: int
    function: str


class Executing(msgspec.Struct, frozen=True, kw_only=True):
    """A run that executed at the end, as the page showed it; `for_s` seconds so far."""

    slot: int
    seq: int
    kind: str
    workflow: str
    run_id: str
    token: str
    epoch: int
    step: str
    for_s: float


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The guilty one: a triple taken at one instant, never what the page shows after the reap."""

    slot: int
    seq: int
    epoch: int
    workflow: str
    run_id: str


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """One end. `issued_at` in seconds since the epoch, `_s` in seconds.

    `realm` identifies store and namespace without naming them, so that a supervisor finishes only
    certificates of its own store.

    >>> Certificate.from_json(certificate.to_json()) == certificate
    True
    """

    incarnation: str
    slot: int
    pid: int
    cause: Cause
    issued_at: float
    realm: str = ""
    exit_code: int | None = None
    signal: int | None = None
    verdict: Verdict | None = None
    executing: tuple[Executing, ...] = ()
    blocked_for_s: float | None = None
    liveness_bound_s: float | None = None
    stack: tuple[Frame, ...] = ()

    @property
    def id(self) -> str:
        """The operation id of the settlement; with the shard it makes each script repeatable."""
        return self.incarnation

    @property
    def lost(self) -> Literal["none", "executing", "all"]:
        """Whose loss counts: with a verdict or on command nobody's; else of those who executed.

        With nobody executing all that it held, unless a stranger killed it.
        """
        if self.verdict is not None or self.cause in NOT_AN_ACCIDENT:
            return "none"
        if self.executing:
            return "executing"
        return "none" if self.cause is Cause.KILLED else "all"

    def lost_run_ids(self, workflow: str) -> tuple[str, ...] | None:
        """The run ids of `workflow` whose loss counts; None means all that the dead one held."""
        if self.lost == "all":
            return None
        if self.lost == "none":
            return ()
        return tuple(e.run_id for e in self.executing if e.workflow == workflow)

    def charges_only(self, now: float) -> bool:
        """Whether it is too old to requeue anything; `now` in seconds since the epoch."""
        return now - self.issued_at > CHARGES_ONLY_AFTER_S

    def to_json(self) -> bytes:
        """The form in the run directory and on the channel."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes) -> Certificate:
        """Read `to_json`; raises `msgspec.DecodeError` for what is not one."""
        return msgspec.json.decode(data, type=cls)
