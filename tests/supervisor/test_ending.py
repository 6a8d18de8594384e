"""How a supervisor ends: no signal is lost, nothing is left, whatever the children do."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.supervisor.command import Supervisor, all_gone, is_alive
from tests.support.until import until

POINTS = 20
BOOT_S = 0.8  # of command, fork and the slow fake together, about


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_first_signal_drains_and_ends_with_0(folder: Path, number: signal.Signals) -> None:
    with Supervisor(folder, "--procs", "2", entry="plain") as supervisor:
        supervisor.wait_ready(2)
        pids = supervisor.pids()
        supervisor.signal(number)
        assert supervisor.exit_code(5) == 0
        assert len(supervisor.journal("draining")) == 2
        assert all_gone(pids)
        assert not (folder / ".pyrula/supervisor.sock").exists()
        assert supervisor.events("supervisor_stopped")[0]["exit"] == 0


@pytest.mark.parametrize("quarter", range(4))
def test_a_term_at_any_point_of_the_boot_is_never_lost(folder: Path, quarter: int) -> None:
    for point in range(quarter, POINTS, 4):
        with Supervisor(folder, "--procs", "2", entry="slow") as supervisor:
            until(partial(is_titled, supervisor), 10)
            until(partial(is_past, time.monotonic() + BOOT_S * point / POINTS))
            pids = supervisor.pids()
            assert supervisor.drained(3) == 0, f"point {point}:\n{supervisor.log}"
            assert all_gone(pids)


def is_past(moment: float) -> bool:
    return time.monotonic() > moment


def is_titled(supervisor: Supervisor) -> bool:
    cmdline = Path(f"/proc/{supervisor.process.pid}/cmdline").read_bytes()
    return b"pyrula: supervisor" in cmdline


@pytest.mark.parametrize(
    ("second", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGQUIT, 143)]
)
def test_a_second_signal_kills_at_once_whatever_holds_the_gil(
    folder: Path, second: signal.Signals, code: int
) -> None:
    with Supervisor(folder, "--procs", "2", entry="holding_the_gil") as supervisor:
        supervisor.wait_ready(2)
        pids = supervisor.pids()
        supervisor.signal(signal.SIGTERM)
        until(lambda: supervisor.events("supervisor_draining"))
        began = time.monotonic()
        supervisor.signal(second)
        assert supervisor.exit_code(5) == code
        assert time.monotonic() - began < 1.0
        assert all_gone(pids)


def test_quit_kills_at_once(folder: Path) -> None:
    with Supervisor(folder, "--procs", "1", entry="holding_the_gil") as supervisor:
        supervisor.wait_ready(1)
        (pid,) = supervisor.pids()
        supervisor.signal(signal.SIGQUIT)
        assert supervisor.exit_code(2) == 143
        assert not is_alive(pid)


def test_what_was_killed_in_the_drain_is_left_to_the_next_supervisor(folder: Path) -> None:
    with Supervisor(folder, "--procs", "1", entry="holding_the_gil") as supervisor:
        supervisor.wait_ready(1)
        supervisor.signal(signal.SIGQUIT)
        supervisor.exit_code(2)
    with Supervisor(folder, "--procs", "1", entry="plain") as supervisor:
        supervisor.wait_ready(1)
        (taken,) = supervisor.journal("settled first")
        assert taken["certificate"]["cause"] == "commanded"


def test_a_drain_that_takes_too_long_is_cut_off(folder: Path) -> None:
    limits = ("--shutdown-grace", "0", "--cancel-timeout", "0")
    with Supervisor(folder, "--procs", "1", *limits, entry="holding_the_gil") as supervisor:
        supervisor.wait_ready(1)
        (pid,) = supervisor.pids()
        assert supervisor.drained(10) == 1
        assert supervisor.events("drain_overdue")
        assert not is_alive(pid)


@pytest.mark.parametrize("entry", ["plain", "holding_the_gil", "slow"])
def test_no_child_outlives_a_killed_supervisor(folder: Path, entry: str) -> None:
    for _ in range(5):
        with Supervisor(folder, "--procs", "3", entry=entry) as supervisor:
            until(partial(has_children, supervisor, 3), 10)
            if entry != "slow":
                supervisor.wait_ready(3)
            pids = supervisor.pids()
            supervisor.process.kill()
            until(partial(all_gone, pids), 1.0, "no child alive after 1 s")


def test_signals_that_mean_nothing_yet_end_nothing(folder: Path) -> None:
    with Supervisor(folder, "--procs", "1", entry="plain") as supervisor:
        supervisor.wait_ready(1)
        (pid,) = supervisor.pids()
        for number in (signal.SIGHUP, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU):
            supervisor.signal(number)
            os.kill(pid, number)
        supervisor.signal(signal.SIGUSR1)
        until(lambda: supervisor.events("status"))
        assert supervisor.pids() == [pid]
        assert supervisor.events("status")[0]["supervisor"]["ready"] == 1
        assert supervisor.drained() == 0


def test_two_hundred_deaths_leave_no_descriptor_no_zombie_and_no_thread(folder: Path) -> None:
    with Supervisor(folder, "--procs", "4", entry="plain") as supervisor:
        supervisor.wait_ready(4)
        before = held_by(supervisor)
        deaths = 0
        while deaths < 200:
            # By TERM: a drained child is replaced without delay.
            for child in supervisor.ready():
                os.kill(child["pid"], signal.SIGTERM)
                deaths += 1
            until(partial(have_drained, supervisor, deaths), 10)
            supervisor.wait_ready(4)
        assert sum(child["restarts"] for child in supervisor.children()) >= 200
        until(lambda: len(held_by(supervisor)) <= len(before), 5)
        pid = supervisor.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert len(children) == 4
        assert len(list(Path(f"/proc/{pid}/task").iterdir())) == 1
        assert supervisor.drained() == 0


def has_children(supervisor: Supervisor, count: int) -> bool:
    return len(supervisor.pids()) == count


def have_drained(supervisor: Supervisor, count: int) -> bool:
    return len(supervisor.journal("draining")) >= count


def held_by(supervisor: Supervisor) -> list[str]:
    """The parent's descriptors."""
    return [fd.name for fd in Path(f"/proc/{supervisor.process.pid}/fd").iterdir()]


def test_a_supervisor_survives_a_log_that_nobody_reads_any_more(folder: Path) -> None:
    read, write = os.pipe()
    with Supervisor(folder, "--procs", "1", entry="plain", log=write) as supervisor:
        os.close(write)
        supervisor.wait_ready(1)
        os.close(read)
        (pid,) = supervisor.pids()
        os.kill(pid, signal.SIGKILL)
        until(lambda: pid not in supervisor.pids() and len(supervisor.ready()) == 1, 10)
        assert supervisor.drained() == 0
