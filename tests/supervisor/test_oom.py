"""The kernel's kill for want of memory is told from a stranger's. As root, in a memory cgroup."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyrula.supervisor import procfs
from pyrula.supervisor.link import ChildSetup
from pyrula.supervisor.oom import BELIEVED_FOR_S, OomWatch
from tests.supervisor import command
from tests.supervisor.children import Fake
from tests.support.until import until

V2 = Path("/sys/fs/cgroup")
V1 = V2 / "memory"
LIMIT = 200 << 20


def eating(setup: ChildSetup) -> int:
    """Slot 0 serves until the file `eat` appears, then takes more memory than there is."""
    fake = Fake(setup)
    fake.ready()
    eat = Path("eat")
    if setup.slot == 0 and not eat.with_name("eaten").exists():
        until(eat.exists, 30)
        eat.rename("eaten")
        assert bytearray(b"x") * (4 * LIMIT) == b""
    return fake.serve()


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A memory cgroup of this test alone, v1 or v2."""
    root, limit = (V1, "memory.limit_in_bytes") if V1.is_dir() else (V2, "memory.max")
    group = root / f"pyrula-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(LIMIT))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield group
    until(lambda: not (group / "cgroup.procs").read_text().strip(), 10, "an empty group")
    group.rmdir()


def test_a_child_that_the_kernel_kills_for_memory_is_certified_so(
    folder: Path, memory_group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = folder / "limited"
    limited.write_text(
        f'#!/bin/sh\necho $$ > {memory_group}/cgroup.procs\nexec {command.COMMAND} "$@"\n'
    )
    limited.chmod(0o755)
    monkeypatch.setattr(command, "COMMAND", limited)
    argv = ("--entry", "tests.supervisor.test_oom:eating", "--store", command.NO_STORE)
    with command.Supervisor(folder, "--procs", "2", "--workflow", "fake", *argv) as supervisor:
        supervisor.wait_ready(2)
        (folder / "eat").touch()
        exited = until(lambda: supervisor.events("worker_exited"), 30, "a dead child")
        assert (exited[0]["cause"], exited[0]["signal"]) == ("oom", 9)
        supervisor.wait_ready(2)
        assert supervisor.drained() == 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The kernel's counter, to be set by the test."""
    counter: list[int | None] = [3]
    monkeypatch.setattr(procfs, "oom_kills", lambda: counter[0])
    return counter


def test_one_kill_explains_one_death(counted: list[int | None]) -> None:
    watch = OomWatch()
    assert not watch.explains(0.0)
    counted[0] = 4
    assert watch.explains(1.0)
    assert not watch.explains(1.0)


def test_a_kill_is_not_believed_for_long(counted: list[int | None]) -> None:
    watch = OomWatch()
    counted[0] = 4
    watch.look(1.0)
    assert not watch.explains(1.0 + BELIEVED_FOR_S + 0.1)


def test_without_a_memory_cgroup_nothing_is_said_to_be_one(counted: list[int | None]) -> None:
    counted[0] = None
    assert not OomWatch().explains(0.0)
