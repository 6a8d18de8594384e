"""The page: what a reader sees while it is written, after a death, and what a write costs."""

from __future__ import annotations

import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Iterator

import pytest

from pyrula.supervisor.page import (
    HEADER_WORDS,
    NEVER,
    SLOT_WORDS,
    Kind,
    Occupant,
    Page,
    PageWriter,
    Phase,
    code_of,
    kind_of,
)
from tests.support.sources import ROOT

AIM_NS = 300
SLACK = 4  # a test machine is shared and slow; the figure itself is printed


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page(runs=3, threads=2, incarnation="host-1")
    yield made
    made.close()


def occupant(number: int) -> Occupant:
    """One whose parts all say the same number, so that a torn read shows."""
    text = f"{number:06d}" * 8
    return Occupant(run_id=text, workflow=text, token=text[:60], epoch=number)


def test_a_reader_sees_what_was_written(page: Page) -> None:
    writer, reader = page.writer(), page.reader()
    writer.phase(Phase.READY)
    writer.loop_thread(7)
    writer.open(1, occupant(4))
    writer.step(1, "0/2", "charge", deadline=99)
    writer.in_step(1, True)
    slot = reader.slot(1)
    assert (reader.phase, reader.loop_thread, reader.incarnation) == (Phase.READY, 7, "host-1")
    assert (slot.occupant, slot.step_path, slot.step_name) == (occupant(4), "0/2", "charge")
    assert (slot.deadline, slot.in_step) == (99, True)
    assert [one.index for one in reader.open_slots()] == [1]


def test_a_closed_slot_holds_nothing(page: Page) -> None:
    writer, reader = page.writer(), page.reader()
    writer.open(0, occupant(1))
    writer.in_step(0, True)
    writer.close(0)
    assert reader.slot(0).occupant is None
    assert not reader.slot(0).in_step
    assert list(reader.open_slots()) == []


def test_a_reader_sees_who_executes_and_since_when(page: Page) -> None:
    writer, reader = page.writer(), page.reader()
    writer.open(2, occupant(5))
    assert reader.on_loop() is None
    before = time.monotonic_ns()
    outer = writer.enter(code_of(2, Kind.STEP))
    found = reader.on_loop()
    assert found is not None
    assert (found.index, found.kind, found.occupant) == (2, Kind.STEP, occupant(5))
    assert before <= found.entered_at <= time.monotonic_ns()
    writer.leave(outer)
    assert reader.on_loop() is None


def test_each_outermost_resume_has_a_new_sequence_number(page: Page) -> None:
    writer, reader = page.writer(), page.reader()
    seen: list[int] = []
    for _ in range(3):
        outer = writer.enter(code_of(0))
        slot = reader.on_loop()
        assert slot is not None
        seen.append(slot.seq)
        writer.leave(outer)
    assert len(set(seen)) == 3


def test_a_resume_inside_another_keeps_sequence_and_age_of_the_outer_one(page: Page) -> None:
    writer, reader = page.writer(), page.reader()
    first = writer.enter(code_of(0))
    outer_slot = reader.on_loop()
    second = writer.enter(code_of(1))
    inner_slot = reader.on_loop()
    assert outer_slot is not None
    assert inner_slot is not None
    assert (inner_slot.index, inner_slot.seq) == (1, outer_slot.seq)
    assert inner_slot.entered_at == outer_slot.entered_at
    writer.leave(second)
    back = reader.on_loop()
    assert back is not None
    assert back.index == 0
    writer.leave(first)
    assert reader.on_loop() is None


def test_a_pool_thread_shows_beside_the_loop(page: Page) -> None:
    writer, reader = page.writer(), page.reader()
    thread = writer.threads[0]
    writer.open(thread, occupant(8))
    writer.thread_enter(thread, 4242)
    writer.enter(code_of(0))
    assert [(one.index, one.is_thread) for one in reader.executing()] == [
        (0, False),
        (thread, True),
    ]
    assert reader.slot(thread).thread_id == 4242
    writer.thread_leave(thread)
    assert [one.index for one in reader.executing()] == [0]


def test_a_collection_shows_while_it_lasts_and_adds_up_after(page: Page) -> None:
    writer, reader = page.writer(), page.reader()
    writer.gc("start")
    assert reader.gc_start != NEVER
    writer.gc("stop")
    assert reader.gc_start == NEVER
    assert reader.gc_total > 0


def test_an_id_that_does_not_fit_is_unknown_and_never_wrong(page: Page) -> None:
    page.writer().open(0, Occupant(run_id="r" * 400, workflow="w", token="t", epoch=1))
    assert page.reader().slot(0).occupant is None


def test_a_long_step_name_is_cut_at_a_character(page: Page) -> None:
    page.writer().open(0, occupant(1))
    page.writer().step(0, "0/1", "é" * 300)
    name = page.reader().slot(0).step_name
    assert 100 < len(name) < 130
    assert set(name) == {"é"}


def test_an_unknown_kind_counts_as_the_engine_s() -> None:
    assert kind_of(9 << 16) is Kind.ENGINE


def broken_off_in_the_middle(page: Page) -> None:
    """Leave slot 0 as an exception between the two stores of the lock leaves it."""
    page.words[HEADER_WORDS] += 1


def test_a_slot_left_in_the_middle_of_a_write_is_unusable(page: Page) -> None:
    page.writer().open(0, occupant(1))
    broken_off_in_the_middle(page)
    assert page.reader().slot(0).occupant is None


WRITES: dict[str, Callable[[PageWriter], None]] = {
    "open": lambda writer: writer.open(0, occupant(2)),
    "step": lambda writer: writer.step(0, "0/1", "work"),
    "close": lambda writer: writer.close(0),
}


@pytest.mark.parametrize("write", WRITES)
def test_the_next_write_repairs_a_slot_that_an_exception_left_in_the_middle(
    page: Page, write: str
) -> None:
    page.writer().open(0, occupant(1))
    broken_off_in_the_middle(page)
    WRITES[write](page.writer())
    assert page.words[HEADER_WORDS] % 2 == 0
    found = {"open": occupant(2), "step": occupant(1), "close": None}
    assert page.reader().slot(0).occupant == found[write]


def forked(name: str) -> str:
    """What a scene of `tests.supervisor.forked` prints, in a process that has one thread."""
    command = [sys.executable, "-m", "tests.supervisor.forked", name]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_read_is_torn_while_another_process_writes() -> None:
    whole, torn = map(int, forked("torn").split())
    assert whole > 100, "the writer hardly wrote"
    assert torn == 0


def test_the_page_can_be_read_after_its_writer_was_killed() -> None:
    assert forked("killed").split() == ["r", "BODY"]


def best_ns(statement: str, writer: PageWriter) -> float:
    """The least time of one run, in ns; noise only ever adds."""
    timer = timeit.Timer(statement, globals={"writer": writer, "code": code_of(0)})
    return min(timer.repeat(repeat=7, number=20_000)) / 20_000 * 1e9


def test_entering_and_leaving_a_resume_costs_a_fraction_of_a_microsecond(page: Page) -> None:
    cost = best_ns("writer.leave(writer.enter(code))", page.writer())
    print(f"page: enter + leave {cost:.0f} ns (aim {AIM_NS})")
    assert cost < SLACK * AIM_NS


def test_a_page_takes_the_memory_that_its_layout_says() -> None:
    page = Page(runs=50, threads=6)
    assert len(page.data) == 8 * (HEADER_WORDS + 56 * SLOT_WORDS)
    assert len(page.data) < 64 * 1024


def test_the_worker_s_side_imports_no_parent() -> None:
    """A worker without a supervisor must not pay for one."""
    code = (
        "import sys; import pyrula.supervisor.page, pyrula.supervisor.link;"
        "print([m for m in sys.modules if m.startswith('pyrula')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for parents in ("pool", "parent", "child", "embedded", "cli"):
        assert f"supervisor.{parents}" not in out.stdout
