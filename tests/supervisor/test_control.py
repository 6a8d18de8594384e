"""The control socket: who may speak to it, two in one folder, and clients that do nothing."""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyrula.supervisor.control import MAX_CLIENTS, ControlSocket, ask, live
from pyrula.supervisor.exits import ExitCode, SupervisorError
from tests.supervisor.command import Supervisor, run
from tests.support.until import until


def test_only_the_owner_may_reach_it(folder: Path) -> None:
    control = ControlSocket(folder / "new/supervisor.sock")
    assert stat.S_IMODE((folder / "new").stat().st_mode) == 0o700
    assert stat.S_IMODE(control.path.stat().st_mode) == 0o600
    control.close()
    assert not control.path.exists()


def test_a_second_one_in_the_folder_takes_a_name_of_its_own(folder: Path) -> None:
    path = folder / "supervisor.sock"
    first, second = ControlSocket(path), ControlSocket(path)
    assert second.path == folder / f"supervisor-{os.getpid()}.sock"
    assert live(path) == [path, second.path]
    first.close()
    assert live(path) == [second.path]
    second.close()
    assert live(path) == []


def test_the_socket_of_a_dead_owner_is_taken_over(folder: Path) -> None:
    path = folder / "supervisor.sock"
    ControlSocket(path).close_in_child()  # as after SIGKILL: socket and lock are still there
    assert path.exists()
    assert live(path) == []
    control = ControlSocket(path)
    assert control.path == path
    control.close()


def test_a_path_that_is_too_long_for_an_address_is_bound_relative_to_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = folder / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    control = ControlSocket(deep / "supervisor.sock")
    assert control.path.exists()
    control.close()


def test_a_path_that_no_address_holds_is_refused_with_a_sentence(folder: Path) -> None:
    with pytest.raises(SupervisorError, match="at most 107 bytes") as refused:
        ControlSocket(folder / ("d" * 200) / "supervisor.sock")
    assert (refused.value.code, refused.value.exit) == ("control_path_too_long", ExitCode.USAGE)


def test_a_folder_that_can_not_be_made_is_refused_with_a_sentence(folder: Path) -> None:
    (folder / "file").touch()
    with pytest.raises(SupervisorError, match="choose a writable place") as refused:
        ControlSocket(folder / "file/supervisor.sock")
    assert (refused.value.code, refused.value.exit) == ("control_not_writable", ExitCode.USAGE)


def test_asking_where_nobody_listens_is_one_sentence(folder: Path) -> None:
    with pytest.raises(SupervisorError) as refused:
        ask(folder / "supervisor.sock", {"command": "status"})
    assert (refused.value.code, refused.value.exit) == ("no_supervisor", ExitCode.REFUSED)


def test_clients_that_say_or_read_nothing_hold_nobody_up(folder: Path) -> None:
    with Supervisor(folder, "--procs", "1", entry="plain") as supervisor, ExitStack() as clients:
        supervisor.wait_ready(1)
        for _ in range(MAX_CLIENTS - 2):
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(str(folder / ".pyrula/supervisor.sock"))
        began = time.monotonic()
        assert supervisor.status()["supervisor"]["ready"] == 1
        assert time.monotonic() - began < 1.0


def test_clients_that_hang_are_dropped_and_their_places_given_to_others(folder: Path) -> None:
    with Supervisor(folder, "--procs", "1", entry="plain") as supervisor, ExitStack() as clients:
        supervisor.wait_ready(1)
        for _ in range(MAX_CLIENTS + 5):
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(str(folder / ".pyrula/supervisor.sock"))
        assert until(supervisor.ready, 15)


def answer_to(folder: Path, question: bytes) -> dict[str, dict[str, str]]:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        client.connect(str(folder / ".pyrula/supervisor.sock"))
        client.sendall(question)
        return dict(json.loads(b"".join(iter(lambda: client.recv(65_536), b""))))


def test_nonsense_is_answered_with_a_code(folder: Path) -> None:
    with Supervisor(folder, "--procs", "1", entry="plain") as supervisor:
        supervisor.wait_ready(1)
        assert answer_to(folder, b"hello\n")["error"]["code"] == "invalid_request"
        assert answer_to(folder, b"\xff\xfe\n")["error"]["code"] == "invalid_request"
        assert answer_to(folder, b'{"command": "dance"}\n')["error"]["code"] == "unknown_command"
        assert answer_to(folder, b"[1]\n")["error"]["code"] == "unknown_command"
        nested = b"[" * 3_000 + b"\n"
        assert answer_to(folder, nested)["error"]["code"] == "invalid_request"
        assert supervisor.drained() == 0


def test_status_shows_a_table_and_one_json_document(folder: Path) -> None:
    with Supervisor(folder, "--procs", "2", entry="serve") as supervisor:
        supervisor.wait_ready(2)
        shown = run(folder, "status")
        assert shown.returncode == 0
        assert "2/2 ready" in shown.stdout
        assert shown.stdout.count("w ×1") == 2
        document = json.loads(run(folder, "status", "--json").stdout)
        assert [child["slot"] for child in document["children"]] == [0, 1]


def test_status_lists_both_supervisors_of_a_folder(folder: Path) -> None:
    with (
        Supervisor(folder, "--procs", "1", entry="plain").wait_ready(1) as first,
        Supervisor(folder, "--procs", "2", entry="plain") as second,
    ):
        beside = folder / f".pyrula/supervisor-{second.process.pid}.sock"
        until(lambda: beside.exists() and ask(beside, {"command": "status"}))
        documents = json.loads(run(folder, "status", "--json").stdout)
        pids = [document["supervisor"]["pid"] for document in documents]
        assert pids == [first.process.pid, second.process.pid]
        assert second.drained() == 0
        assert not beside.exists()


def test_status_without_a_supervisor_is_refused_with_its_code(folder: Path) -> None:
    said = run(folder, "status", "--json")
    assert said.returncode == ExitCode.REFUSED
    assert json.loads(said.stderr)["error"]["code"] == "no_supervisor"
    assert said.stdout == ""
