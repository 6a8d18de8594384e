"""The page: what a child executes right now, readable from outside at any instant.

Owns the layout of one anonymous shared mapping per child, its writer (the child) and its reader
(the parent). It can be read while the child holds its GIL, is stopped, or is dead. It answers who
*executes*; who is in flight is asked of the store.

Every field has one writer and is an aligned 64-bit word, so a single read is never torn. Text and
other many-word fields of a slot are guarded by a sequence word: odd means "being written", and a
reader that sees it odd, or changed, tries again and then says "unusable" instead of guessing.

Refuses: locks, growth after the fork, pointers, a layout of another version.
"""

from __future__ import annotations

import enum
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MAGIC: Final = 0x70797275_6C610001
LAYOUT: Final = 1
NOBODY: Final = 0

# Words of the header.
_MAGIC, _LAYOUT, _SLOTS, _PHASE, _PID, _LOOP_THREAD, _BEAT_THREAD = range(7)
_LOOP_BEAT, _THREAD_BEAT, _GC_START, _GC_TOTAL, _CURRENT, _ENTERED = range(7, 13)
_INCARNATION_LENGTH: Final = 16
_INCARNATION: Final = 17
_INCARNATION_BYTES: Final = 120
_HEADER: Final = 32

# Words of a slot; the text fields follow in bytes.
_LOCK, _EPOCH, _DEADLINE, _LENGTHS, _STEP_LENGTHS, _IN_STEP, _KIND, _THREAD = range(8)
_SLOT_ENTERED, _SLOT_SEQ = 8, 9
_TOKEN, _RUN_ID, _WORKFLOW, _STEP_PATH, _STEP_NAME = 96, 160, 480, 608, 704
_TOKEN_BYTES: Final = 64
_RUN_ID_BYTES: Final = 320
_WORKFLOW_BYTES: Final = 128
_STEP_PATH_BYTES: Final = 96
_STEP_NAME_BYTES: Final = 128
_SLOT_BYTES: Final = 832
_SLOT_WORDS: Final = _SLOT_BYTES // 8

# The current word: sequence, kind and slot of the resume that the loop thread is in.
_SLOT_BITS: Final = 16
_KIND_SHIFT: Final = 16
_SEQ_SHIFT: Final = 20
_MARK_MASK: Final = (1 << _SEQ_SHIFT) - 1
MAX_SLOTS: Final = (1 << _SLOT_BITS) - 1

_ATTEMPTS: Final = 50


class Phase(enum.IntEnum):
    """How far a child has come, as it says itself."""

    FORKED = 1
    BOOTING = 2
    READY = 3
    DRAINING = 4


class Kind(enum.IntEnum):
    """Whose code a resume runs. Only `BODY` and `STEP` can ever be charged."""

    BODY = 1
    STEP = 2
    ENGINE = 3
    BACKGROUND = 4


@dataclass(frozen=True, kw_only=True)
class SlotView:
    """One attempt as its slot describes it, read consistently.

    `entered_ns` (CLOCK_MONOTONIC) and `thread_id` are set while a pool thread executes in it;
    `deadline_ns` is 0 without a deadline; `seq` counts entries of that thread.
    """

    slot: int
    seq: int
    epoch: int
    token: str
    run_id: str
    workflow: str
    step_path: str
    step_name: str
    kind: Kind
    in_step: bool
    deadline_ns: int
    thread_id: int
    entered_ns: int


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Code that is being executed now: the triple (slot, seq, epoch) and what is known of it.

    `view` is None if the slot was being written when the child stopped (or dies writing): then
    somebody executes, and nobody can say who.
    """

    slot: int
    seq: int
    epoch: int
    kind: Kind
    thread_id: int
    entered_ns: int
    view: SlotView | None


@dataclass(frozen=True, kw_only=True)
class Header:
    """The words that describe the child as a whole. Times are CLOCK_MONOTONIC ns, 0 = never."""

    phase: Phase
    pid: int
    incarnation: str
    loop_thread: int
    beat_thread: int
    loop_beat_ns: int
    thread_beat_ns: int
    gc_start_ns: int
    gc_total_ns: int


class Page:
    """The mapping itself, made by the parent before the fork and inherited by one child.

    `slots` is the number of slots: attempts that may be open at once plus pool threads.
    Raises `ValueError` if it isn't in 1 to 65,535.

    >>> page = Page(slots=4)
    >>> page.writer().open(1, epoch=7, token="7.ab", run_id="order-1", workflow="order")
    >>> [view.run_id for view in page.reader().open_slots()]
    ['order-1']
    """

    def __init__(self, *, slots: int) -> None:
        if not 1 <= slots <= MAX_SLOTS:
            raise ValueError(f"expected 1 to {MAX_SLOTS} page slots, found {slots}")
        self.slots = slots
        self._map = mmap.mmap(-1, _HEADER * 8 + (slots + 1) * _SLOT_BYTES)
        self.bytes = memoryview(self._map)
        self.words = self.bytes.cast("Q")
        self.words[_MAGIC], self.words[_LAYOUT] = MAGIC, LAYOUT
        self.words[_SLOTS], self.words[_PHASE] = slots, Phase.FORKED

    def writer(self, now: Callable[[], int] = time.monotonic_ns) -> PageWriter:
        """The child's side; `now` gives CLOCK_MONOTONIC nanoseconds."""
        return PageWriter(self, now)

    def reader(self) -> PageReader:
        """The parent's side. Raises `ValueError` if the page is of another layout."""
        return PageReader(self)

    def close(self) -> None:
        """Unmap; the page and its readers and writers are unusable afterwards."""
        self.words.release()
        self.bytes.release()
        self._map.close()


class PageWriter:
    """Writes the page from inside the child. No call blocks, allocates slots or can fail.

    Slots are numbered from 1; who has which is the caller's business. `enter`, `leave` and
    `beat_loop` belong to the loop thread alone; `enter_thread` and `leave_thread` to the thread
    that owns the slot.
    """

    __slots__ = ("_bytes", "_now", "_seq", "_words", "slots")

    def __init__(self, page: Page, now: Callable[[], int]) -> None:
        self._words = page.words
        self._bytes = page.bytes
        self._now = now
        self._seq = 0
        self.slots = page.slots

    def identify(self, incarnation: str) -> None:
        """Say who writes: this process, under the name that the store knows it by."""
        text = _cut(incarnation, _INCARNATION_BYTES)
        start = _INCARNATION * 8
        self._bytes[start : start + len(text)] = text
        self._words[_INCARNATION_LENGTH] = len(text)
        self._words[_PID] = os.getpid()

    def phase(self, phase: Phase) -> None:
        """Say how far this child has come."""
        self._words[_PHASE] = phase

    def threads(self, *, loop: int, beat: int) -> None:
        """Name the kernel thread ids (`threading.get_native_id`) of the loop and the beat."""
        self._words[_LOOP_THREAD] = loop
        self._words[_BEAT_THREAD] = beat

    def beat_loop(self) -> None:
        """The loop turns; called each 100 ms by the loop."""
        self._words[_LOOP_BEAT] = self._now()

    def beat_thread(self) -> None:
        """Threads run; called each 100 ms by a thread that does nothing else."""
        self._words[_THREAD_BEAT] = self._now()

    def gc_started(self) -> None:
        """A garbage collection began (from `gc.callbacks`)."""
        self._words[_GC_START] = self._now()

    def gc_ended(self) -> None:
        """The collection that began last has ended; its time is added to the total."""
        words = self._words
        words[_GC_TOTAL] += self._now() - words[_GC_START]
        words[_GC_START] = 0

    def open(self, slot: int, *, epoch: int, token: str, run_id: str, workflow: str) -> None:
        """Give `slot` to an attempt, without a step."""
        words, data = self._words, self._bytes
        base, start = _slot_word(slot), _slot_byte(slot)
        words[base + _LOCK] |= 1
        lengths = _put(data, start + _TOKEN, token, _TOKEN_BYTES)
        lengths |= _put(data, start + _RUN_ID, run_id, _RUN_ID_BYTES) << 16
        lengths |= _put(data, start + _WORKFLOW, workflow, _WORKFLOW_BYTES) << 32
        words[base + _LENGTHS] = lengths
        words[base + _STEP_LENGTHS] = 0
        words[base + _EPOCH] = epoch
        words[base + _DEADLINE] = words[base + _IN_STEP] = words[base + _SLOT_ENTERED] = 0
        words[base + _KIND] = Kind.BODY
        words[base + _LOCK] += 1

    def step(self, slot: int, path: str, name: str, deadline_ns: int = 0) -> None:
        """The attempt in `slot` is at the step `name`; `deadline_ns` is CLOCK_MONOTONIC or 0."""
        words, data = self._words, self._bytes
        base, start = _slot_word(slot), _slot_byte(slot)
        words[base + _LOCK] |= 1
        words[base + _STEP_LENGTHS] = (
            _put(data, start + _STEP_PATH, path, _STEP_PATH_BYTES)
            | _put(data, start + _STEP_NAME, name, _STEP_NAME_BYTES) << 16
        )
        words[base + _DEADLINE] = deadline_ns
        words[base + _LOCK] += 1

    def in_step(self, slot: int, inside: bool) -> None:
        """From the flush of `step:pending` to the reply of its `step:done` (protocol rule 23)."""
        self._words[_slot_word(slot) + _IN_STEP] = inside

    def close(self, slot: int) -> None:
        """The attempt in `slot` is over."""
        words, base = self._words, _slot_word(slot)
        words[base + _LOCK] |= 1
        words[base + _EPOCH] = words[base + _LENGTHS] = words[base + _SLOT_ENTERED] = 0
        words[base + _IN_STEP] = 0
        words[base + _LOCK] += 1

    def enter(self, mark: int) -> int:
        """The loop thread begins a resume of `mark` (see `mark`); returns what to `leave` with.

        Inside an outer resume (an eager task) the outer sequence and entry time stay.
        """
        words = self._words
        outer = words[_CURRENT]
        if outer:
            words[_CURRENT] = outer & ~_MARK_MASK | mark
        else:
            words[_ENTERED] = self._now()
            self._seq = seq = self._seq + 1
            words[_CURRENT] = seq << _SEQ_SHIFT | mark
        return outer

    def leave(self, outer: int) -> None:
        """The resume is over; `outer` is what `enter` returned."""
        self._words[_CURRENT] = outer

    def enter_thread(self, slot: int, thread_id: int, kind: Kind = Kind.STEP) -> None:
        """A pool thread (`threading.get_native_id`) begins to execute for `slot`."""
        words, base = self._words, _slot_word(slot)
        words[base + _THREAD] = thread_id
        words[base + _KIND] = kind
        words[base + _SLOT_SEQ] += 1
        words[base + _SLOT_ENTERED] = self._now()

    def leave_thread(self, slot: int) -> None:
        """The pool thread is done with `slot`."""
        self._words[_slot_word(slot) + _SLOT_ENTERED] = 0


class PageReader:
    """Reads the page from outside. Never blocks: a slot that stays unreadable is left out."""

    def __init__(self, page: Page) -> None:
        words = page.words
        if words[_MAGIC] != MAGIC or words[_LAYOUT] != LAYOUT:
            raise ValueError(
                f"expected page layout {LAYOUT}, found {words[_LAYOUT]}; "
                "restart the supervisor to upgrade pyrula itself"
            )
        self._words = words
        self._bytes = page.bytes
        self._slots = page.slots

    def header(self) -> Header:
        """The words that describe the child as a whole."""
        words = self._words
        length = min(words[_INCARNATION_LENGTH], _INCARNATION_BYTES)
        return Header(
            phase=Phase(words[_PHASE]),
            pid=words[_PID],
            incarnation=_get(self._bytes, _INCARNATION * 8, length),
            loop_thread=words[_LOOP_THREAD],
            beat_thread=words[_BEAT_THREAD],
            loop_beat_ns=words[_LOOP_BEAT],
            thread_beat_ns=words[_THREAD_BEAT],
            gc_start_ns=words[_GC_START],
            gc_total_ns=words[_GC_TOTAL],
        )

    def current(self) -> Execution | None:
        """What the loop thread executes, taken at one instant; None if it executes nobody's code.

        A current word that changes under each look is a busy loop, not a block: None then too.
        """
        words = self._words
        for _ in range(_ATTEMPTS):
            word = words[_CURRENT]
            if word == NOBODY:
                return None
            slot, kind = word & MAX_SLOTS, Kind(word >> _KIND_SHIFT & 15)
            view, entered = self.slot(slot), words[_ENTERED]
            if words[_CURRENT] == word:
                return Execution(
                    slot=slot,
                    seq=word >> _SEQ_SHIFT,
                    epoch=words[_slot_word(slot) + _EPOCH],
                    kind=kind,
                    thread_id=words[_LOOP_THREAD],
                    entered_ns=entered,
                    view=view,
                )
        return None

    def executing(self) -> list[Execution]:
        """Everything that is executed now: by the loop thread first, then by pool threads."""
        current = self.current()
        found = [] if current is None else [current]
        for slot in range(1, self._slots + 1):
            base = _slot_word(slot)
            if self._words[base + _SLOT_ENTERED] == 0:
                continue
            view = self.slot(slot)
            if view is not None and view.entered_ns == 0:
                continue
            found.append(self._thread_execution(slot, view))
        return found

    def open_slots(self) -> list[SlotView]:
        """All attempts whose slots can be read."""
        views = (self.slot(slot) for slot in range(1, self._slots + 1))
        return [view for view in views if view is not None and view.run_id]

    def slot(self, slot: int) -> SlotView | None:
        """One slot read consistently, or None if it can't be."""
        words = self._words
        base, start = _slot_word(slot), _slot_byte(slot)
        for _ in range(_ATTEMPTS):
            before = words[base + _LOCK]
            if before & 1:
                continue
            view = self._view(slot, base, start)
            if words[base + _LOCK] == before:
                return view
        return None

    def _view(self, slot: int, base: int, start: int) -> SlotView:
        words, data = self._words, self._bytes
        lengths, steps = words[base + _LENGTHS], words[base + _STEP_LENGTHS]
        return SlotView(
            slot=slot,
            seq=words[base + _SLOT_SEQ],
            epoch=words[base + _EPOCH],
            token=_get(data, start + _TOKEN, lengths & 0xFFFF),
            run_id=_get(data, start + _RUN_ID, lengths >> 16 & 0xFFFF),
            workflow=_get(data, start + _WORKFLOW, lengths >> 32 & 0xFFFF),
            step_path=_get(data, start + _STEP_PATH, steps & 0xFFFF),
            step_name=_get(data, start + _STEP_NAME, steps >> 16 & 0xFFFF),
            kind=Kind(words[base + _KIND] or Kind.BODY),
            in_step=bool(words[base + _IN_STEP]),
            deadline_ns=words[base + _DEADLINE],
            thread_id=words[base + _THREAD],
            entered_ns=words[base + _SLOT_ENTERED],
        )

    def _thread_execution(self, slot: int, view: SlotView | None) -> Execution:
        words, base = self._words, _slot_word(slot)
        return Execution(
            slot=slot,
            seq=words[base + _SLOT_SEQ],
            epoch=words[base + _EPOCH],
            kind=Kind(words[base + _KIND] or Kind.STEP),
            thread_id=words[base + _THREAD],
            entered_ns=words[base + _SLOT_ENTERED],
            view=view,
        )


def mark(slot: int, kind: Kind) -> int:
    """What `PageWriter.enter` takes: computed once per attempt and kind, not per resume."""
    return slot | kind << _KIND_SHIFT


def _slot_word(slot: int) -> int:
    return _HEADER + slot * _SLOT_WORDS


def _slot_byte(slot: int) -> int:
    return _HEADER * 8 + slot * _SLOT_BYTES


def _cut(text: str, most: int) -> bytes:
    return text.encode("utf-8", "replace")[:most]


def _put(data: memoryview, at: int, text: str, most: int) -> int:
    """Write text cut to `most` bytes; returns its length."""
    packed = _cut(text, most)
    length = len(packed)
    data[at : at + length] = packed
    return length


def _get(data: memoryview, at: int, length: int) -> str:
    return str(data[at : at + length], "utf-8", "replace")
