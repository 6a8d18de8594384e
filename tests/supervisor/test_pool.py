"""What a pool does with its children: restarts, and deaths handed to whoever can settle them."""

from __future__ import annotations

import os
import signal
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.command import Supervisor, is_alive
from tests.support.sources import ROOT
from tests.support.until import until


def pid_of(supervisor: Supervisor, slot: int) -> int:
    return int(next(child["pid"] for child in supervisor.children() if child["slot"] == slot))


def is_replaced(supervisor: Supervisor, pid: int) -> bool:
    return pid not in supervisor.pids()


def kill(supervisor: Supervisor, slot: int) -> int:
    pid = pid_of(supervisor, slot)
    os.kill(pid, signal.SIGKILL)
    return pid


def settles(supervisor: Supervisor, count: int = 1, event: str = "settle") -> list[dict[str, Any]]:
    """The first `count` certificates that children took, in order."""
    until(lambda: len(supervisor.journal(event)) >= count, 10, f"{count} × {event}")
    return supervisor.journal(event)[:count]


def test_a_pool_serves_and_says_all_that_status_should_say(folder: Path) -> None:
    with Supervisor(folder, "--procs", "2", entry="serve") as supervisor:
        supervisor.wait_ready(2)
        until(lambda: all(child["runs"] for child in supervisor.children()))
        status = supervisor.status()
        assert set(status) == {"supervisor", "children"}
        head = status["supervisor"]
        assert set(head) == {"pid", "host", "version", "state", "procs", "ready", "started_at"}
        assert (head["pid"], head["state"]) == (supervisor.process.pid, "ready")
        assert (head["procs"], head["ready"]) == (2, 2)
        keys = {"slot", "pid", "state", "since", "restarts", "last_exit", "shards", "runs"}
        keys |= {"executing", "verdict", "loop_lag_ms", "rss_bytes", "cpu_percent"}
        for slot, child in enumerate(status["children"]):
            assert set(child) == keys
            assert (child["slot"], child["state"], child["restarts"]) == (slot, "ready", 0)
            assert (child["last_exit"], child["verdict"]) == (None, None)
            assert (child["shards"], child["runs"]) == ({"w": 4}, 1)
            assert child["loop_lag_ms"] == {"p50": 0.5, "p99": None}
            assert child["rss_bytes"] > 1 << 20
            (executing,) = child["executing"]
            assert executing["run_id"] == f"busy-{slot}"
            assert (executing["workflow"], executing["step"]) == ("w", "work")
            assert executing["kind"] == "step"
            assert executing["for_s"] >= 0
        assert supervisor.drained() == 0


def test_a_killed_child_is_replaced_and_its_end_is_told(folder: Path) -> None:
    with Supervisor(folder, "--procs", "2", entry="plain") as supervisor:
        supervisor.wait_ready(2)
        dead = kill(supervisor, 0)
        until(lambda: [c["restarts"] for c in supervisor.ready()] == [1, 0], 10)
        child = supervisor.children()[0]
        assert child["pid"] != dead
        last = child["last_exit"]
        assert set(last) == {"cause", "exit_code", "signal", "at"}
        assert (last["cause"], last["exit_code"], last["signal"]) == ("killed", None, 9)
        (exited,) = supervisor.events("worker_exited")
        assert (exited["worker"], exited["pid"], exited["cause"]) == (0, dead, "killed")


def test_a_death_is_settled_by_a_sibling_which_knows_who_executed(folder: Path) -> None:
    with Supervisor(folder, "--procs", "2", entry="serve") as supervisor:
        supervisor.wait_ready(2)
        dead = kill(supervisor, 0)
        (taken,) = settles(supervisor)
        certificate = taken["certificate"]
        assert taken["slot"] == 1
        assert (certificate["pid"], certificate["slot"]) == (dead, 0)
        assert (certificate["cause"], certificate["signal"]) == ("killed", 9)
        (executing,) = certificate["executing"]
        assert (executing["run_id"], executing["step"]) == ("busy-0", "work")
        assert (executing["workflow"], executing["epoch"]) == ("w", 1)
        until(lambda: supervisor.events("death_settled"))
        assert not list((folder / ".pyrula/certificates").glob("*.json"))


def test_the_others_are_told_where_runs_came_free(folder: Path) -> None:
    with Supervisor(folder, "--procs", "3", entry="plain") as supervisor:
        supervisor.wait_ready(3)
        kill(supervisor, 0)
        (taken,) = settles(supervisor)
        (told,) = {1, 2} - {taken["slot"]}
        until(lambda: any(line["slot"] == told for line in supervisor.journal("hint")))
        assert supervisor.journal("hint")[0]["got"] == {"w": [1, 2]}
        until(lambda: {line["slot"] for line in supervisor.journal("tick")} >= {1, 2})


def test_a_child_that_does_not_answer_in_half_a_second_is_passed_over(folder: Path) -> None:
    entry = "only_slot_2_acknowledges"
    with Supervisor(folder, "--procs", "3", entry=entry) as supervisor:
        supervisor.wait_ready(3)
        kill(supervisor, 0)
        until(lambda: 2 in {line["slot"] for line in supervisor.journal("settle")}, 10)
        asked = supervisor.journal("settle")
        assert asked[-1]["slot"] == 2
        for earlier, later in pairwise(asked):
            assert 0.4 < later["at"] - earlier["at"] < 1.5
        until(lambda: supervisor.events("death_settled"))


def test_without_a_sibling_the_next_child_settles_before_it_serves(folder: Path) -> None:
    with Supervisor(folder, "--procs", "1", entry="plain") as supervisor:
        supervisor.wait_ready(1)
        dead = kill(supervisor, 0)
        (taken,) = settles(supervisor, event="settled first")
        assert taken["certificate"]["pid"] == dead
        supervisor.wait_ready(1)
        mine = [line["event"] for line in supervisor.journal() if line["pid"] == taken["pid"]]
        assert mine[:2] == ["settled first", "ready"]
        until(lambda: supervisor.events("death_settled"))


def test_the_next_supervisor_finishes_what_this_one_could_not_settle(folder: Path) -> None:
    entry = "only_slot_2_acknowledges"
    with Supervisor(folder, "--procs", "2", entry=entry) as first:
        first.wait_ready(2)
        dead = kill(first, 0)
        settles(first)
        first.process.kill()
        first.process.wait()
    with Supervisor(folder, "--procs", "1", entry="plain") as second:
        (taken,) = settles(second, event="settled first")
        assert taken["certificate"]["pid"] == dead


def test_what_never_served_leaves_nothing_to_settle(folder: Path) -> None:
    with Supervisor(folder, "--procs", "2", entry="only_first_boot_fails") as supervisor:
        supervisor.wait_ready(2)
        assert supervisor.journal("settle") == []
        assert not list((folder / ".pyrula").glob("certificates/*"))


def test_a_child_that_drains_by_itself_is_replaced_without_delay(folder: Path) -> None:
    with Supervisor(folder, "--procs", "2", entry="plain") as supervisor:
        supervisor.wait_ready(2)
        for _ in range(5):
            before = pid_of(supervisor, 0)
            os.kill(before, signal.SIGTERM)
            until(partial(is_replaced, supervisor, before), 5)
            supervisor.wait_ready(2)
        assert supervisor.children()[0]["last_exit"]["cause"] == "commanded"
        assert supervisor.journal("settle") == []


def test_a_crashing_child_is_retried_with_growing_delays(folder: Path) -> None:
    with Supervisor(folder, "--procs", "4", entry="crashing") as supervisor:
        until(lambda: len(supervisor.events("worker_restarted")) >= 4, 15)
        delays = [event["delay_s"] for event in supervisor.events("worker_restarted")]
        for failures, delay in enumerate(delays):
            assert delay <= 0.1 * 2**failures
        assert [child["restarts"] for child in supervisor.children()[1:]] == [0, 0, 0]
        last = supervisor.children()[0]["last_exit"]
        assert (last["cause"], last["exit_code"]) == ("exit", 9)
        assert supervisor.drained() == 0


def test_a_crash_loop_is_said_once_and_ends_with_70_if_asked_for(folder: Path) -> None:
    argv = ("--procs", "1", "--crash-loop-exit", "0.1")
    with Supervisor(folder, *argv, entry="crashing") as supervisor:
        assert supervisor.exit_code(20) == 70
        assert len(supervisor.events("crash_loop")) == 1
        assert "[crash_loop]" in supervisor.log


def test_a_boot_that_fails_everywhere_ends_the_supervisor_with_the_child_s_words(
    folder: Path,
) -> None:
    with Supervisor(folder, "--procs", "3", entry="failing") as supervisor:
        assert supervisor.exit_code(5) == 1
        assert "expected app, found no app [module_failed]" in supervisor.log
        assert "app.py:3 in <module>" in supervisor.log
        assert "Traceback" not in supervisor.log
        assert len(supervisor.events("worker_forked")) == 3


@pytest.mark.parametrize("entry", ["hanging", "never_ready"])
def test_a_pool_of_which_nobody_gets_ready_ends_after_the_boot_budget(
    folder: Path, entry: str
) -> None:
    with Supervisor(folder, "--procs", "1", "--boot-budget", "0.5", entry=entry) as supervisor:
        assert supervisor.exit_code(10) == 1
        assert "[boot_timeout]" in supervisor.log
        if entry == "hanging":
            (timed_out,) = supervisor.events("worker_boot_timed_out")
            assert "in hanging" in timed_out["stack"], "the log shows where it hangs"
            assert supervisor.events("worker_exited")[0]["cause"] == "boot"


def test_what_a_child_has_started_dies_with_it(folder: Path) -> None:
    with Supervisor(folder, "--procs", "1", entry="with_a_subprocess") as supervisor:
        supervisor.wait_ready(1)
        (started,) = supervisor.journal("started")
        kill(supervisor, 0)
        until(lambda: not is_alive(started["child"]), 5)


def test_orphans_of_its_children_are_reaped_by_a_supervisor_that_inherits_them(
    folder: Path,
) -> None:
    """As PID 1 of a container; here as a sub-reaper, which is the same and needs no rights."""
    (folder / "sitecustomize.py").write_text("import ctypes\nctypes.CDLL(None).prctl(36, 1)\n")
    env = {"PYTHONPATH": f"{folder}:{ROOT}"}
    with Supervisor(folder, "--procs", "1", entry="with_a_subprocess", env=env) as supervisor:
        supervisor.wait_ready(1)
        (started,) = supervisor.journal("started")
        kill(supervisor, 0)
        until(lambda: not Path(f"/proc/{started['child']}").exists(), 5, "no zombie")
        supervisor.wait_ready(1)
        assert len(supervisor.events("worker_exited")) == 1, "a stranger's end is nobody's"
        assert supervisor.drained() == 0


def test_a_child_holds_nothing_of_its_siblings_or_its_parent(folder: Path) -> None:
    with Supervisor(folder, "--procs", "3", entry="with_descriptors") as supervisor:
        supervisor.wait_ready(3)
        kill(supervisor, 0)
        until(lambda: len(supervisor.journal("descriptors")) == 4, 10)
        for line in supervisor.journal("descriptors"):
            names = line["names"]
            assert line["threads"] == 1
            assert sum(name.startswith("socket:") for name in names) == 1, names
            assert not any("pidfd" in name or "supervisor.lock" in name for name in names), names
            # Its own health pipe, and the wake-up pipe that the fake made: nothing else.
            assert sum(name.startswith("pipe:") for name in names) == 3, names
            assert sum("pyrula-stacks" in name for name in names) == 1, names


def test_a_supervisor_that_has_a_second_thread_refuses_to_fork(folder: Path) -> None:
    """A lock held by that thread at the fork would be held in the child for ever."""
    (folder / "sitecustomize.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    env = {"PYTHONPATH": f"{folder}:{ROOT}"}
    with Supervisor(folder, "--procs", "1", entry="plain", env=env) as supervisor:
        assert supervisor.exit_code(10) == 1
        assert "expected one thread in the supervisor before a fork" in supervisor.log
        assert "Traceback" not in supervisor.log
        assert supervisor.journal() == []


def test_the_parent_answers_while_a_child_floods_and_another_never_reads(folder: Path) -> None:
    with Supervisor(folder, "--procs", "2", entry="flooding_or_deaf") as supervisor:
        supervisor.wait_ready(2)
        for _ in range(20):
            assert supervisor.status()["supervisor"]["ready"] == 2
        assert supervisor.drained() == 0
