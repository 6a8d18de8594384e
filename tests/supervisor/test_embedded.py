"""The embedded server of a folder: started, shared, adopted, restarted, stopped by the last."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pyrula.supervisor import procfs
from pyrula.supervisor.embedded import EmbeddedServer, answers, running_url, server_binary
from pyrula.supervisor.exits import SupervisorError
from tests.supervisor.command import NO_STORE, Supervisor, is_alive
from tests.support.sources import ROOT
from tests.support.until import until


@pytest.fixture
def home(folder: Path) -> Iterator[Path]:
    """The `.pyrula` of a folder; whatever serves there is killed at the end."""
    path = folder / ".pyrula"
    yield path
    with suppress(OSError, ValueError):
        os.kill(recorded(path), signal.SIGKILL)


def recorded(home: Path) -> int:
    return int(json.loads((home / "server.json").read_text())["pid"])


def cli(home: Path, *words: str) -> str:
    """Speak to the server with a raw socket, as one of its clients."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(home / "valkey.sock"))
        connection.sendall((" ".join(words) + "\r\n").encode())
        return connection.recv(4_096).decode()


SHARER = """
import sys
from pathlib import Path
from pyrula.supervisor.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]))
server.start()
print("up", flush=True)
sys.stdin.read()
server.stop()
"""


@contextmanager
def another(home: Path) -> Generator[subprocess.Popen[bytes]]:
    """Another process that uses the server of the folder; it lets go when its stdin ends."""
    command = [sys.executable, "-c", SHARER, str(home)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            while b"up" not in process.stdout.readline():
                assert process.poll() is None
            yield process
        finally:
            process.kill()


def settle_down(server: EmbeddedServer, home: Path) -> None:
    """Play the parent's loop until the server is back."""

    def is_back() -> bool:
        server.tick(time.monotonic())
        return answers(home / "valkey.sock")

    until(is_back, 10)


def test_it_starts_answers_and_stops_and_keeps_what_it_was_told(home: Path) -> None:
    server = EmbeddedServer(home)
    assert running_url(home) is None
    assert server.start()
    assert not server.adopted
    assert running_url(home) == server.url == f"unix://{home}/valkey.sock"
    assert cli(home, "SET", "k", "v").startswith("+OK")
    pid = recorded(home)
    server.stop()
    assert not is_alive(pid)
    assert running_url(home) is None
    again = EmbeddedServer(home)
    again.start()
    assert cli(home, "GET", "k").endswith("v\r\n")
    again.stop()


def test_it_listens_on_no_port_and_only_its_owner_may_connect(home: Path) -> None:
    server = EmbeddedServer(home)
    server.start()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "valkey.sock").stat().st_mode) == 0o600
    assert cli(home, "CONFIG", "GET", "port").split()[-1] == "0"
    assert cli(home, "CONFIG", "GET", "appendonly").split()[-1] == "yes"
    assert os.getpgid(recorded(home)) == recorded(home)
    server.stop()


def test_a_second_one_uses_it_and_the_last_one_stops_it(home: Path) -> None:
    with another(home) as first:
        pid = recorded(home)
        second = EmbeddedServer(home)
        second.start()
        assert second.adopted
        first.communicate(timeout=10)
        assert is_alive(pid)
    second.stop()
    assert not is_alive(pid)


def test_one_that_outlived_its_supervisor_is_adopted(home: Path) -> None:
    with another(home) as lost:
        pid = recorded(home)
        lost.kill()
    heir = EmbeddedServer(home)
    heir.start()
    assert heir.adopted
    assert recorded(home) == pid
    heir.stop()
    until(lambda: not is_alive(pid))


def test_one_that_was_not_recorded_is_adopted_and_never_doubled(home: Path) -> None:
    with another(home) as lost:
        pid = recorded(home)
        lost.kill()
    (home / "server.json").unlink()  # killed between starting it and writing it down
    heir = EmbeddedServer(home)
    heir.start()
    assert heir.adopted
    assert recorded(home) == pid
    heir.stop()


def test_a_reused_pid_is_not_taken_for_the_server(home: Path) -> None:
    home.mkdir()
    record = {"pid": os.getpid(), "ticks": (procfs.start_ticks(os.getpid()) or 0) - 1}
    (home / "server.json").write_text(json.dumps(record))
    server = EmbeddedServer(home)
    server.start()
    assert not server.adopted
    server.stop()


def test_one_that_dies_is_started_again_on_the_same_file(home: Path) -> None:
    server = EmbeddedServer(home)
    server.start()
    cli(home, "SET", "k", "v")
    os.kill(recorded(home), signal.SIGKILL)
    assert server.pidfd is not None
    assert select.select([server.pidfd], [], [], 5)[0]
    server.died(time.monotonic())
    settle_down(server, home)
    assert cli(home, "GET", "k").endswith("v\r\n")
    server.stop()


def test_a_server_that_hangs_is_not_waited_for_after_a_second_signal(home: Path) -> None:
    """Nor killed: what it acknowledged last may not be in its file yet."""
    served = ("--workflow", "fake", "--entry", "tests.supervisor.children:plain", "--procs", "1")
    with Supervisor(home.parent, *served) as first:
        first.wait_ready(1)
        pid = recorded(home)
        os.kill(pid, signal.SIGSTOP)
        first.signal(signal.SIGTERM)
        until(lambda: first.events("worker_exited"))
        first.signal(signal.SIGTERM)
        assert first.exit_code(2) == 143
        assert not first.events("embedded_server_stopped")
        # The kernel continues what is stopped in an orphaned group: it now ends as it was told.
        with Supervisor(home.parent, *served) as second:
            second.wait_ready(1)
            until(lambda: not is_alive(pid))
            until(lambda: running_url(home), 10)
            assert recorded(home) != pid
            assert second.drained() == 0


def test_a_folder_that_can_not_be_written_is_refused_with_a_sentence(folder: Path) -> None:
    (folder / "file").touch()
    with pytest.raises(SupervisorError, match="name a server with --store") as refused:
        EmbeddedServer(folder / "file").start()
    assert refused.value.code == "embedded_not_writable"


def test_a_path_that_is_too_long_is_refused_with_a_sentence(folder: Path) -> None:
    with pytest.raises(SupervisorError, match="shorter path") as refused:
        EmbeddedServer(folder / ("d" * 110)).start()
    assert refused.value.code == "embedded_path_too_long"


def test_a_server_that_does_not_come_up_is_said_with_its_log(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyrula.supervisor.embedded.server_binary", lambda: Path("/bin/false"))
    server = EmbeddedServer(home)
    with pytest.raises(SupervisorError, match=r"valkey\.log") as refused:
        server.start()
    assert refused.value.code == "embedded_failed"
    server.stop()
    assert not (home / "server.json").exists(), "nothing half done"


def test_without_any_binary_the_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing: dict[str, str] = {}
    monkeypatch.setattr("pyrula.supervisor.embedded.find_spec", nothing.get)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SupervisorError, match=r"pyrula\[embedded\]") as refused:
        server_binary()
    assert refused.value.code == "embedded_missing"


def test_a_pool_without_a_store_url_has_its_own_and_stops_it_last(home: Path) -> None:
    served = ("--workflow", "fake", "--entry", "tests.supervisor.children:plain")
    with Supervisor(home.parent, "--procs", "1", *served) as supervisor:
        supervisor.wait_ready(1)
        assert f"at unix://{home}/valkey.sock" in supervisor.log
        pid = recorded(home)
        assert supervisor.drained() == 0
        assert not is_alive(pid)
        assert supervisor.events("embedded_server_stopped")


def test_a_pool_restarts_its_server_and_survives_a_hung_one(home: Path) -> None:
    served = ("--workflow", "fake", "--entry", "tests.supervisor.children:plain")
    with Supervisor(home.parent, "--procs", "2", *served) as supervisor:
        supervisor.wait_ready(2)
        os.kill(recorded(home), signal.SIGKILL)
        until(lambda: supervisor.events("embedded_server_restarted"), 10)
        until(lambda: running_url(home), 10)
        os.kill(recorded(home), signal.SIGSTOP)
        dead = supervisor.pids()[0]
        os.kill(dead, signal.SIGKILL)
        until(lambda: dead not in supervisor.pids() and len(supervisor.ready()) == 2, 10)
        os.kill(recorded(home), signal.SIGCONT)
        assert supervisor.drained() == 0


def test_after_kill_9_of_the_supervisor_the_next_one_adopts(home: Path) -> None:
    served = ("--workflow", "fake", "--entry", "tests.supervisor.children:plain", "--procs", "1")
    with Supervisor(home.parent, *served) as first:
        first.wait_ready(1)
        pid = recorded(home)
        first.process.kill()
        first.process.wait()
        assert is_alive(pid)
        with Supervisor(home.parent, *served) as second:
            second.wait_ready(1)
            assert "uses the embedded server that runs" in second.log
            assert second.drained() == 0
            until(lambda: not is_alive(pid))


def test_a_named_store_starts_none(home: Path) -> None:
    with Supervisor(home.parent, "--procs", "1", "--store", NO_STORE, entry="plain") as supervisor:
        supervisor.wait_ready(1)
        assert not (home / "server.json").exists()


def test_an_end_of_the_supervisor_during_ctrl_c_reaches_the_server_last(home: Path) -> None:
    """Ctrl-C goes to the whole foreground group: the server is not in it."""
    served = ("--workflow", "fake", "--entry", "tests.supervisor.children:plain", "--procs", "1")
    with Supervisor(home.parent, *served) as supervisor:
        supervisor.wait_ready(1)
        os.killpg(supervisor.process.pid, signal.SIGINT)
        assert supervisor.exit_code(10) == 0
        assert supervisor.events("embedded_server_stopped")


def test_the_binary_of_the_wheel_runs() -> None:
    command = [str(server_binary()), "--version"]
    assert subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
