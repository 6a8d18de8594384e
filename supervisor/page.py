"""The page: what a child executes right now, readable from outside at any moment.

Owns one layout in anonymous shared memory, its writer (the child) and its reader (the parent). One
writer a field, aligned 64-bit words, so a word is never torn; fields of several words stand under a
sequence lock (odd: being written, unusable). It can be read while the child holds the GIL and after
it was killed. It says who executes, not who is in flight: that is asked of the store.

Refuses to interpret: verdicts and charges are made by whoever reads.
"""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from enum import IntEnum

MAGIC = 0x50595255_4C415047
VERSION = 1
_HEADER_BYTES = 256
_SLOT_BYTES = 768

# Header words
_W_MAGIC, _W_VERSION, _W_SLOTS, _W_PHASE, _W_LOOP_TID, _W_BEAT_TID = range(6)
_W_LOOP_BEAT, _W_THREAD_BEAT, _W_GC_START, _W_CURRENT, _W_ENTERED, _W_SEQ = range(6, 12)
_INCARNATION_AT, _INCARNATION_BYTES = 128, 128

# Slot words, then text fields (offset from the slot's start, size)
_S_LOCK, _S_EPOCH, _S_ENTERED, _S_DEADLINE, _S_THREAD, _S_KIND, _S_IN_STEP = range(7)
_RUN_ID, _WORKFLOW, _TOKEN, _PATH, _NAME = (64, 272), (336, 136), (472, 64), (536, 96), (632, 136)


class Phase(IntEnum):
    """Where a child is in its life."""

    BOOTING = 0
    READY = 1
    DRAINING = 2


class Kind(IntEnum):
    """What kind of code executes in a slot; `ENGINE` and `BACKGROUND` are never charged."""

    CLOSED = 0
    BODY = 1
    STEP = 2
    ENGINE = 3
    BACKGROUND = 4


@dataclass(frozen=True, kw_only=True)
class Executing:
    """One open slot as the parent reads it; times are monotonic ns, 0 where unset."""

    slot: int
    seq: int
    epoch: int
    token: str
    run_id: str
    workflow: str
    path: str
    step: str
    kind: Kind
    in_step: bool
    entered_ns: int
    deadline_ns: int
    thread_id: int


class Page:
    """The shared memory itself; made by the parent before the fork.

    `slots` is the number of runs and pool threads that can be open at once.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.memory = mmap.mmap(-1, _HEADER_BYTES + slots * _SLOT_BYTES)
        self.bytes = memoryview(self.memory)
        self.words = self.bytes.cast("Q")
        self.words[_W_MAGIC], self.words[_W_VERSION], self.words[_W_SLOTS] = MAGIC, VERSION, slots

    def close(self) -> None:
        """Give the memory back."""
        self.words.release()
        self.bytes.release()
        self.memory.close()


class PageWriter:
    """The child's side. `enter` and `leave` bracket every resume of a run's code.

    >>> writer = PageWriter(Page(2), "host-0-abc")
    >>> slot = writer.open("run-1", "orders", "1:ff", 1)
    >>> before = writer.enter(slot)
    >>> writer.leave(before)
    """

    def __init__(self, page: Page, incarnation: str) -> None:
        self._bytes, self._words = page.bytes, page.words
        self._free = list(range(page.slots - 1, -1, -1))
        self._seq = 0
        self._put(_INCARNATION_AT, _INCARNATION_BYTES, incarnation)

    def phase(self, phase: Phase) -> None:
        """Say where this child is in its life."""
        self._words[_W_PHASE] = phase

    def threads(self, loop_tid: int, beat_tid: int) -> None:
        """Name the threads (native ids) whose beats are on the page."""
        self._words[_W_LOOP_TID], self._words[_W_BEAT_TID] = loop_tid, beat_tid

    def loop_beat(self) -> None:
        """The event loop turns."""
        self._words[_W_LOOP_BEAT] = time.monotonic_ns()

    def thread_beat(self) -> None:
        """A thread beside the loop can run Python."""
        self._words[_W_THREAD_BEAT] = time.monotonic_ns()

    def collecting(self, since_ns: int) -> None:
        """A garbage collection began at `since_ns`; 0: it is over."""
        self._words[_W_GC_START] = since_ns

    def open(self, run_id: str, workflow: str, token: str, epoch: int) -> int:
        """Take a slot for a run; -1 when the page is full (then nothing is published)."""
        if not self._free:
            return -1
        slot = self._free.pop()
        word, at = self._place(slot)
        words = self._words
        words[word + _S_LOCK] += 1
        words[word + _S_EPOCH] = epoch
        words[word + _S_KIND] = Kind.BODY
        words[word + _S_IN_STEP] = words[word + _S_DEADLINE] = words[word + _S_ENTERED] = 0
        for (start, size), text in (
            (_RUN_ID, run_id),
            (_WORKFLOW, workflow),
            (_TOKEN, token),
            (_PATH, ""),
            (_NAME, ""),
        ):
            self._put(at + start, size, text)
        words[word + _S_LOCK] += 1
        return slot

    def close(self, slot: int) -> None:
        """The run's attempt is over."""
        if slot < 0:
            return
        word = self._place(slot)[0]
        self._words[word + _S_KIND] = Kind.CLOSED
        self._words[word + _S_IN_STEP] = 0
        self._free.append(slot)

    def step(self, slot: int, path: str, name: str, deadline_ns: int) -> None:
        """A step's pending is with the kernel; its body comes next."""
        if slot < 0:
            return
        word, at = self._place(slot)
        words = self._words
        words[word + _S_LOCK] += 1
        self._put(at + _PATH[0], _PATH[1], path)
        self._put(at + _NAME[0], _NAME[1], name)
        words[word + _S_DEADLINE] = deadline_ns
        words[word + _S_ENTERED] = time.monotonic_ns()
        words[word + _S_KIND] = Kind.STEP
        words[word + _S_IN_STEP] = 1
        words[word + _S_LOCK] += 1

    def step_over(self, slot: int) -> None:
        """The step's outcome was acknowledged."""
        if slot < 0:
            return
        word = self._place(slot)[0]
        self._words[word + _S_IN_STEP] = 0
        self._words[word + _S_KIND] = Kind.BODY

    def enter(self, slot: int) -> int:
        """Code of `slot` runs from here on; returns what ran before, for `leave`."""
        words = self._words
        before = words[_W_CURRENT]
        if not before:
            self._seq += 1
            words[_W_ENTERED] = time.monotonic_ns()
        words[_W_CURRENT] = self._seq << 16 | slot + 1
        return before

    def leave(self, before: int) -> None:
        """Back to what ran before `enter`."""
        self._words[_W_CURRENT] = before

    def _place(self, slot: int) -> tuple[int, int]:
        at = _HEADER_BYTES + slot * _SLOT_BYTES
        return at >> 3, at

    def _put(self, at: int, size: int, text: str) -> None:
        raw = text.encode()[: size - 1] + b"\0"
        self._bytes[at : at + len(raw)] = raw


class PageReader:
    """The parent's side; every answer is one look."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._bytes, self._words = page.bytes, page.words

    @property
    def incarnation(self) -> str:
        """The identity the child wrote."""
        return self._text(_INCARNATION_AT, _INCARNATION_BYTES)

    @property
    def phase(self) -> Phase:
        """Where the child is in its life."""
        return Phase(self._words[_W_PHASE])

    @property
    def loop_beat_ns(self) -> int:
        """When the loop last beat (monotonic ns), 0 before the first."""
        return self._words[_W_LOOP_BEAT]

    @property
    def thread_beat_ns(self) -> int:
        """When the thread last beat (monotonic ns), 0 before the first."""
        return self._words[_W_THREAD_BEAT]

    def current(self) -> tuple[int, int, int] | None:
        """(seq, slot, entered ns) of the code on the loop; None when none of a run."""
        word = self._words[_W_CURRENT]
        return (word >> 16, (word & 0xFFFF) - 1, self._words[_W_ENTERED]) if word else None

    def executing(self) -> list[Executing]:
        """All open slots that can be read; one that is being written is left out."""
        found = (self._slot(slot) for slot in range(self._page.slots))
        return [one for one in found if one is not None]

    def _slot(self, slot: int) -> Executing | None:
        at = _HEADER_BYTES + slot * _SLOT_BYTES
        word, words = at >> 3, self._words
        for _ in range(3):
            lock = words[word + _S_LOCK]
            if lock & 1 or words[word + _S_KIND] == Kind.CLOSED:
                continue
            found = Executing(
                slot=slot,
                seq=words[_W_CURRENT] >> 16,
                epoch=words[word + _S_EPOCH],
                token=self._text(at + _TOKEN[0], _TOKEN[1]),
                run_id=self._text(at + _RUN_ID[0], _RUN_ID[1]),
                workflow=self._text(at + _WORKFLOW[0], _WORKFLOW[1]),
                path=self._text(at + _PATH[0], _PATH[1]),
                step=self._text(at + _NAME[0], _NAME[1]),
                kind=Kind(words[word + _S_KIND]),
                in_step=bool(words[word + _S_IN_STEP]),
                entered_ns=words[word + _S_ENTERED],
                deadline_ns=words[word + _S_DEADLINE],
                thread_id=words[word + _S_THREAD],
            )
            if words[word + _S_LOCK] == lock:
                return found
        return None

    def _text(self, at: int, size: int) -> str:
        raw = bytes(self._bytes[at : at + size])
        return raw.partition(b"\0")[0].decode("utf-8", "replace")
