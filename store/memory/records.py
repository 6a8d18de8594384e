"""What the memory store keeps: runs, and per shard the queue, the locks and the timers.

Owns the invariants between a run and the indexes that name it: a run is in exactly one of queue,
`running`, `timers`, waiting (in none) or terminal, and only the small methods here move it. Refuses
decisions: which move is right is up to the transitions.
"""

from __future__ import annotations

import heapq
import re
from dataclasses import dataclass, field
from typing import Literal

from pyrula.workflows.stores.base import TERMINAL, Flag, Hint, RunRef, Status

HintKind = Literal["work", "cancel", "done"]
Release = Literal["park", "requeue", "finish", "taken"]

MOST_WOKEN = 8  # by one transition; who is woken claims whole batches

# Recognised by prefix: user payloads are opaque to a store.
_PROGRESS = re.compile(rb'\{"e":"step:(?:done"|error",(?:"t":\d+,)?"final":true)')


@dataclass(kw_only=True, slots=True)
class Run:
    """One run. `token` is empty while nobody owns it; times are store ms."""

    ref: RunRef
    digest: str
    owner: str | None
    journal: list[bytes]
    created_ms: int
    updated_ms: int
    status: Status = "queued"
    trimmed: int = 0
    flags: Flag = Flag.NONE
    score: int | None = None  # its place in the queue, kept for life once drawn
    epoch: int = 0
    token: str = ""
    incarnation: str | None = None
    # The last token that was given up, and how: the repeated call gets the same answer.
    given_up: tuple[str, Release | None] = ("", None)
    claimed_length: int = 0
    lost: int = 0  # losses without progress
    futile: int = 0  # consecutive attempts without progress
    waiters: set[str] = field(default_factory=set[str])

    @property
    def length(self) -> int:
        """The sequence of the last event."""
        return self.trimmed + len(self.journal)

    @property
    def ended(self) -> bool:
        """Whether the run is terminal."""
        return self.status in TERMINAL

    def progressed(self) -> bool:
        """Whether this attempt finished a call of the body: a done step, or one failed for good."""
        written = self.journal[max(0, self.claimed_length - self.trimmed) :]
        return any(_PROGRESS.match(event) for event in written)

    def forgive(self) -> None:
        """Start counting losses and futile attempts afresh."""
        self.lost = self.futile = 0


@dataclass(kw_only=True, slots=True)
class LastClaim:
    """What an incarnation got from its newest claim of a shard: run ids and tokens."""

    n: int
    taken: list[tuple[str, str]]


@dataclass(kw_only=True, slots=True)
class Shard:
    """Everything of one shard of one workflow name."""

    workflow: str
    number: int
    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    queue: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])  # heap by score
    next_score: int = 1
    running: dict[str, int] = field(default_factory=dict[str, int])  # run id -> lock expiry
    held: dict[str, set[str]] = field(default_factory=dict[str, set[str]])  # incarnation -> run ids
    suspects: dict[str, int] = field(default_factory=dict[str, int])  # run id -> suspected at
    timers: dict[str, int] = field(default_factory=dict[str, int])  # run id -> due
    done: dict[str, int] = field(default_factory=dict[str, int])  # run id -> expires at
    hungry: dict[str, int] = field(default_factory=dict[str, int])  # incarnation -> until
    tombs: dict[str, int] = field(default_factory=dict[str, int])  # incarnation -> until
    claims: dict[str, LastClaim] = field(default_factory=dict[str, LastClaim])
    outbox: list[tuple[str, Hint]] = field(default_factory=list[tuple[str, Hint]])

    def find(self, run_id: str, now: int) -> Run | None:
        """The run, unless it was never there or has expired."""
        if self.done.get(run_id, now + 1) <= now:
            return None
        return self.runs.get(run_id)

    def is_dead(self, incarnation: str, now: int) -> bool:
        """Whether the incarnation was buried within the last ten minutes."""
        return self.tombs.get(incarnation, 0) > now

    def enqueue(self, run: Run, now: int) -> None:
        """Make an unowned run claimable in its old place, or behind all others if it has none."""
        self.timers.pop(run.ref.run_id, None)
        if run.score is None:
            run.score = self.next_score
            self.next_score += 1
        heapq.heappush(self.queue, (run.score, run.ref.run_id))
        run.status = "queued"
        run.updated_ms = now

    def postpone(self, run: Run, due_ms: int, status: Status, now: int) -> None:
        """Keep an unowned run from being claimed until `due_ms`."""
        self.timers[run.ref.run_id] = due_ms
        run.status = status
        run.updated_ms = now

    def lock(self, run: Run, incarnation: str, nonce: str, expires_ms: int, now: int) -> None:
        """Give the run to `incarnation` under a new token."""
        run.epoch += 1
        run.token = f"{run.epoch}:{nonce}"
        run.incarnation = incarnation
        run.claimed_length = run.length
        run.status = "running"
        run.updated_ms = now
        self.running[run.ref.run_id] = expires_ms
        self.held.setdefault(incarnation, set()).add(run.ref.run_id)

    def unlock(self, run: Run, how: Release) -> None:
        """Take the run from its owner, whose token is void from now on."""
        run_id, owner = run.ref.run_id, run.incarnation or ""
        del self.running[run_id]
        self.suspects.pop(run_id, None)
        self.held[owner].discard(run_id)
        if not self.held[owner]:
            del self.held[owner]
        run.given_up = (run.token, how)
        run.token = ""
        run.incarnation = None

    def wake(self, claimable: int, now: int) -> None:
        """Tell the members that have been hungry longest, one for each claimable run."""
        for member in [name for name, until in self.hungry.items() if until <= now]:
            del self.hungry[member]
        longest = sorted(self.hungry, key=lambda name: (self.hungry[name], name))
        for member in longest[: min(claimable, MOST_WOKEN)]:
            del self.hungry[member]
            self.tell(member, "work")

    def tell(
        self, member: str, kind: HintKind, run_id: str = "", terminal: bytes | None = None
    ) -> None:
        """Leave a hint that goes out once the transition is done."""
        hint = Hint(
            kind=kind, workflow=self.workflow, shard=self.number, run_id=run_id, terminal=terminal
        )
        self.outbox.append((member, hint))
