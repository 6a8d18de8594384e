"""The page: shared memory in which a child says what executes now.

Owns the one layout, the writer that the child uses and the reader that the parent uses. It answers
*who executes*, not who is in flight: that is asked of the store. It can be read while the child
holds the GIL, and after SIGKILL.

Layout, in aligned 64-bit words: a header (`H_*`), then one block per slot (`S_*`, then texts). Run
slots come first, one per run in flight, written by the loop thread; thread slots follow, one per
pool thread, written by that thread. Each field has one writer and a word is never torn; what spans
several words lies under the slot's seqlock, whose odd value means "being written, unusable", also
for ever if the child died there.

`current` is one word: a sequence number that rises with each outermost resume, the kind of code and
the slot. So a reader that sees the same word twice has seen one resume that never ended.

Refuses: locks across processes, files, anything of variable size. A text that does not fit is cut;
an id that does not fit is published as empty: unknown, never wrong.
"""

from __future__ import annotations

import enum
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic_ns

MAGIC = 0x50595255_4C415047
LAYOUT = 1  # raise with every change: a child of another layout must not be read
NEVER = 0

# Header words.
H_MAGIC, H_LAYOUT, H_RUNS, H_THREADS, H_PHASE, H_LOOP_THREAD, H_BEAT_THREAD = range(7)
H_LOOP_BEAT, H_THREAD_BEAT, H_GC_START, H_GC_TOTAL, H_CURRENT, H_ENTERED_AT = range(7, 13)
H_INCARNATION = 16  # a text of the rest of the header
HEADER_WORDS = 48

# Words of a slot; the texts follow.
S_LOCK, S_CURRENT, S_ENTERED_AT, S_THREAD, S_IN_STEP, S_EPOCH = range(6)
_IDENTITY = struct.Struct("=QQ64sQ312sQ128s")  # epoch, then token, run id, workflow with lengths
_STEP = struct.Struct("=QQ240s")  # deadline, length, "path\0name"
_IDENTITY_AT = 8 * S_EPOCH
_STEP_AT = _IDENTITY_AT + _IDENTITY.size
SLOT_WORDS = (_STEP_AT + _STEP.size + 7) // 8
_TOKEN, _RUN_ID, _WORKFLOW, _STEP_TEXT = 64, 312, 128, 240

# The word `current`: sequence | kind | slot + 1.
_SLOT_BITS, _KIND_BITS = 16, 4
_SEQ_ONE = 1 << (_SLOT_BITS + _KIND_BITS)
_SEQ_MASK = ~(_SEQ_ONE - 1)
_READS = 100


class Phase(enum.IntEnum):
    """Where a child is in its life."""

    FORKED = 0
    BOOTING = 1
    READY = 2
    DRAINING = 3
    GONE = 4


class Kind(enum.IntEnum):
    """What sort of code executes. `ENGINE` and `BACKGROUND` never charge a run."""

    BODY = 1
    STEP = 2
    ENGINE = 3
    BACKGROUND = 4


@dataclass(frozen=True, kw_only=True)
class Occupant:
    """The attempt that a slot stands for."""

    run_id: str
    workflow: str
    token: str
    epoch: int


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One slot as read. Times are ns of the monotonic clock, 0 = none.

    `current` is the word of who executes in it (0 = nobody), `thread_id` the native id of the
    thread. `occupant` is None for an empty slot, or one that was being written.
    """

    index: int
    is_thread: bool
    current: int
    entered_at: int
    thread_id: int
    in_step: bool
    deadline: int
    step_path: str
    step_name: str
    occupant: Occupant | None

    @property
    def seq(self) -> int:
        """The sequence number of what executes."""
        return seq_of(self.current)

    @property
    def kind(self) -> Kind:
        """What sort of code executes."""
        return kind_of(self.current)


def code_of(slot: int, kind: Kind = Kind.BODY) -> int:
    """What `PageWriter.enter` takes, to be computed once per attempt and kind."""
    return kind << _SLOT_BITS | slot + 1


def seq_of(current: int) -> int:
    """The sequence number in a `current` word."""
    return current >> (_SLOT_BITS + _KIND_BITS)


def kind_of(current: int) -> Kind:
    """The kind in a `current` word; what is unknown counts as the engine's, which is never charged.

    >>> kind_of(7 << 20 | 2 << 16 | 1).name
    'STEP'
    """
    value = current >> _SLOT_BITS & ((1 << _KIND_BITS) - 1)
    return Kind(value) if value in _KINDS else Kind.ENGINE


_KINDS = frozenset(int(kind) for kind in Kind)


class Page:
    """The shared mapping of one child: made by the parent before the fork, seen by both.

    >>> page = Page(runs=2, threads=1)
    >>> page.writer().open(0, Occupant(run_id="r", workflow="w", token="1.ab", epoch=1))
    >>> page.reader().slot(0).occupant.run_id
    'r'
    """

    def __init__(self, *, runs: int, threads: int, incarnation: str = "") -> None:
        self.runs = runs
        self.threads = threads
        self._map = mmap.mmap(-1, 8 * (HEADER_WORDS + (runs + threads) * SLOT_WORDS))
        self.data = memoryview(self._map)
        self.words = self.data.cast("Q")
        self.words[H_MAGIC], self.words[H_LAYOUT] = MAGIC, LAYOUT
        self.words[H_RUNS], self.words[H_THREADS] = runs, threads
        self.set_incarnation(incarnation)

    def set_incarnation(self, incarnation: str) -> None:
        """Name the process that writes; the parent does so once it knows the pid."""
        text = incarnation.encode()[: 8 * (HEADER_WORDS - H_INCARNATION - 1)]
        self.words[H_INCARNATION] = len(text)
        start = 8 * (H_INCARNATION + 1)
        self.data[start : start + len(text)] = text

    def writer(self) -> PageWriter:
        """The child's end. One per process."""
        return PageWriter(self)

    def reader(self) -> PageReader:
        """The parent's end."""
        return PageReader(self)

    def close(self) -> None:
        """Give the memory back; readers and writers of it are dead from here on."""
        self.words.release()
        self.data.release()
        self._map.close()


class PageWriter:
    """What the child writes. Nothing here takes a lock, allocates much, or can fail for a fit.

    The loop thread calls everything but `thread_*`, which a pool thread calls for its own slot, and
    `beat_thread`, which belongs to the thread that beats.
    """

    __slots__ = ("_current", "_data", "_runs", "_seq", "_thread_seqs", "_words", "runs", "threads")

    def __init__(self, page: Page) -> None:
        self.runs = range(page.runs)
        self.threads = range(page.runs, page.runs + page.threads)
        self._data = page.data
        self._words = page.words
        self._current = 0
        self._seq = 0
        self._thread_seqs = dict.fromkeys(self.threads, 0)

    # The process

    def phase(self, phase: Phase) -> None:
        """Say how far the child has come."""
        self._words[H_PHASE] = phase

    def loop_thread(self, native_id: int) -> None:
        """Name the thread that runs the event loop."""
        self._words[H_LOOP_THREAD] = native_id

    def beat_thread(self, native_id: int) -> None:
        """Name the thread that calls `thread_beat`."""
        self._words[H_BEAT_THREAD] = native_id

    def loop_beat(self) -> None:
        """The loop turns; called on it about every 100 ms."""
        self._words[H_LOOP_BEAT] = monotonic_ns()

    def thread_beat(self) -> None:
        """Another Python thread runs too; called on that thread about every 100 ms."""
        self._words[H_THREAD_BEAT] = monotonic_ns()

    def gc(self, phase: str, _: object = None) -> None:
        """Entry for `gc.callbacks`: a collection stops every beat and is nobody's fault."""
        now = monotonic_ns()
        if phase == "start":
            self._words[H_GC_START] = now
        elif began := self._words[H_GC_START]:
            self._words[H_GC_TOTAL] += now - began
            self._words[H_GC_START] = NEVER

    # What executes on the loop: around each resume

    def enter(self, code: int) -> int:
        """A resume begins, of the run and kind in `code` (see `code_of`); give `leave` the result.

        Inside another resume (an eager task) the sequence stays, so that the age of a block counts
        from where the loop was last free.
        """
        outer = self._current
        words = self._words
        if outer:
            words[H_CURRENT] = self._current = (outer & _SEQ_MASK) + code
            return outer
        self._seq = seq = self._seq + _SEQ_ONE
        # Before `current`: a reader between the two sees the old resume as too young, never the
        # new one as too old.
        words[H_ENTERED_AT] = monotonic_ns()
        words[H_CURRENT] = self._current = seq + code
        return 0

    def leave(self, outer: int = 0) -> None:
        """The resume ended; what executed around it, if anything, executes again."""
        self._words[H_CURRENT] = self._current = outer

    # Who is in a slot

    def open(self, slot: int, occupant: Occupant) -> None:
        """An attempt takes `slot`."""
        base = self._base(slot)
        self._words[base] |= 1
        _pack_identity(self._data, 8 * base, occupant)
        _STEP.pack_into(self._data, 8 * base + _STEP_AT, NEVER, 0, b"")
        self._words[base + S_IN_STEP] = 0
        self._words[base] += 1

    def step(self, slot: int, path: str, name: str, deadline: int = NEVER) -> None:
        """The run in `slot` executes this step; `deadline` in ns of the monotonic clock.

        With several legs call it again when another leg is resumed: the page shows the one that
        executes.
        """
        base = HEADER_WORDS + slot * SLOT_WORDS
        words = self._words
        text = f"{path}\0{name}".encode()
        words[base] |= 1
        _STEP.pack_into(self._data, 8 * base + _STEP_AT, deadline, min(len(text), _STEP_TEXT), text)
        words[base] += 1

    def in_step(self, slot: int, inside: bool) -> None:
        """Whether any step of this run is between its `step:pending` and the reply to its done."""
        self._words[HEADER_WORDS + slot * SLOT_WORDS + S_IN_STEP] = inside

    def close(self, slot: int) -> None:
        """The attempt is over."""
        base = self._base(slot)
        self._words[base] |= 1
        _IDENTITY.pack_into(self._data, 8 * base + _IDENTITY_AT, 0, 0, b"", 0, b"", 0, b"")
        self._words[base + S_IN_STEP] = 0
        self._words[base] += 1

    # What executes in a pool thread

    def thread_enter(self, slot: int, native_id: int, kind: Kind = Kind.STEP) -> None:
        """This thread runs code of the occupant that it has put into its own `slot`."""
        base = self._base(slot)
        self._thread_seqs[slot] += _SEQ_ONE
        self._words[base + S_THREAD] = native_id
        self._words[base + S_ENTERED_AT] = monotonic_ns()
        self._words[base + S_CURRENT] = self._thread_seqs[slot] + code_of(slot, kind)

    def thread_leave(self, slot: int) -> None:
        """This thread is idle again."""
        self._words[self._base(slot) + S_CURRENT] = 0

    def _base(self, slot: int) -> int:
        return HEADER_WORDS + slot * SLOT_WORDS


class PageReader:
    """What the parent reads, at any time, also while the child writes or after it died."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._words = page.words
        self._data = page.data

    @property
    def incarnation(self) -> str:
        """The process that writes here."""
        start = 8 * (H_INCARNATION + 1)
        return bytes(self._data[start : start + self._words[H_INCARNATION]]).decode()

    @property
    def phase(self) -> Phase:
        """How far the child says it has come."""
        return Phase(self._words[H_PHASE])

    @property
    def loop_thread(self) -> int:
        """Native id of the loop's thread, 0 before it said."""
        return self._words[H_LOOP_THREAD]

    @property
    def beat_thread(self) -> int:
        """Native id of the thread that beats, 0 before it said."""
        return self._words[H_BEAT_THREAD]

    @property
    def loop_beat(self) -> int:
        """When the loop last turned."""
        return self._words[H_LOOP_BEAT]

    @property
    def thread_beat(self) -> int:
        """When the beating thread last ran."""
        return self._words[H_THREAD_BEAT]

    @property
    def gc_start(self) -> int:
        """When the collection that runs now began, 0 if none runs."""
        return self._words[H_GC_START]

    @property
    def gc_total(self) -> int:
        """Ns spent in finished collections."""
        return self._words[H_GC_TOTAL]

    @property
    def current(self) -> int:
        """The word of what executes on the loop, 0 = the loop itself."""
        return self._words[H_CURRENT]

    def on_loop(self) -> Slot | None:
        """Who executes on the loop, or None. Identity, word and time belong together."""
        for _ in range(_READS):
            current = self._words[H_CURRENT]
            index = (current & ((1 << _SLOT_BITS) - 1)) - 1
            if not 0 <= index < self._page.runs:
                return None
            slot = self._read(index, current, self._words[H_ENTERED_AT], self.loop_thread)
            if self._words[H_CURRENT] == current:
                return slot
        return None

    def executing(self) -> list[Slot]:
        """Everything that executes now: at most one run on the loop, and the pool threads."""
        on_loop = self.on_loop()
        threads = range(self._page.runs, self._page.runs + self._page.threads)
        found = [self.slot(index) for index in threads]
        return [*([on_loop] if on_loop else []), *(slot for slot in found if slot.current)]

    def open_slots(self) -> Iterator[Slot]:
        """Every run slot with an occupant, executing or not; for evacuation."""
        return (s for s in map(self.slot, range(self._page.runs)) if s.occupant)

    def slot(self, index: int) -> Slot:
        """One slot; a thread slot with what its thread executes."""
        base = HEADER_WORDS + index * SLOT_WORDS
        if index < self._page.runs:
            return self._read(index, 0, 0, 0)
        for _ in range(_READS):
            current = self._words[base + S_CURRENT]
            entered, thread = self._words[base + S_ENTERED_AT], self._words[base + S_THREAD]
            slot = self._read(index, current, entered, thread)
            if self._words[base + S_CURRENT] == current:
                return slot
        return self._read(index, 0, 0, 0)

    def _read(self, index: int, current: int, entered_at: int, thread_id: int) -> Slot:
        occupant, (deadline, path, name) = self._identity(HEADER_WORDS + index * SLOT_WORDS)
        return Slot(
            index=index,
            is_thread=index >= self._page.runs,
            current=current,
            entered_at=entered_at,
            thread_id=thread_id,
            in_step=bool(self._words[HEADER_WORDS + index * SLOT_WORDS + S_IN_STEP]),
            deadline=deadline,
            step_path=path,
            step_name=name,
            occupant=occupant,
        )

    def _identity(self, base: int) -> tuple[Occupant | None, tuple[int, str, str]]:
        """What lies under the seqlock, or nothing if it was being written all the time."""
        for _ in range(_READS):
            before = self._words[base]
            block = bytes(self._data[8 * base + _IDENTITY_AT : 8 * (base + SLOT_WORDS)])
            if before % 2 == 0 and self._words[base] == before:
                return _unpack_identity(block), _unpack_step(block)
        return None, (NEVER, "", "")


def _pack_identity(data: memoryview, at: int, occupant: Occupant) -> None:
    token, run_id = occupant.token.encode(), occupant.run_id.encode()
    workflow = occupant.workflow.encode()
    fits = len(token) <= _TOKEN and len(run_id) <= _RUN_ID and len(workflow) <= _WORKFLOW
    lengths = (len(token), len(run_id), len(workflow)) if fits else (0, 0, 0)
    _IDENTITY.pack_into(
        data,
        at + _IDENTITY_AT,
        occupant.epoch,
        *(lengths[0], token, lengths[1], run_id, lengths[2], workflow),
    )


def _unpack_identity(block: bytes) -> Occupant | None:
    epoch, n_token, token, n_run_id, run_id, n_workflow, workflow = _IDENTITY.unpack_from(block)
    if not n_run_id:
        return None
    return Occupant(
        run_id=run_id[:n_run_id].decode(),
        workflow=workflow[:n_workflow].decode(),
        token=token[:n_token].decode(),
        epoch=epoch,
    )


def _unpack_step(block: bytes) -> tuple[int, str, str]:
    deadline, length, text = _STEP.unpack_from(block, _IDENTITY.size)
    # A cut may fall inside a character.
    path, _, name = text[: min(length, _STEP_TEXT)].decode(errors="ignore").partition("\0")
    return deadline, path, name
