"""The command with the real worker: every bad input is one sentence, a code and an exit status."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socketserver
import stat
import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pyrula.supervisor import options
from pyrula.workflows.worker.options import WorkerOptions
from tests.supervisor.command import NO_STORE, Supervisor, is_alive, run
from tests.support.until import until

APP = """
from pyrula.workflows import workflow

@workflow
async def hello(ctx, name: str = "you"):
    return f"hello {name}"

not_one = 3
"""
BROKEN = """
def load_settings():
    raise KeyError("DATABASE_URL")

load_settings()
"""


class SpeaksHttp(socketserver.BaseRequestHandler):
    """Answers whatever comes as a web server would."""

    def handle(self) -> None:
        self.request.recv(4_096)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@contextmanager
def a_web_server() -> Generator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), SpeaksHttp) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"redis://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def app(folder: Path) -> Path:
    (folder / "app.py").write_text(APP)
    (folder / "broken.py").write_text(BROKEN)
    return folder


def refused(folder: Path, *argv: str, code: str, exit_code: int, **more: Any) -> str:
    """Run it, check how it is refused, and give what it said beside its log."""
    done = run(folder, *argv, **more)
    said = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert done.returncode == exit_code, done.stderr
    assert sum(f"[{code}]" in line for line in said) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return "\n".join(said)


@pytest.mark.parametrize("procs", ["0", "-1", "many", "1001", "1.5", ""])
def test_a_wrong_number_of_processes_is_refused(app: Path, procs: str) -> None:
    argv = (f"--procs={procs}", "--workflow", "app")
    said = refused(app, *argv, code="invalid_option", exit_code=2)
    assert "--procs" in said
    assert not (app / ".pyrula").exists(), "nothing half done"


def test_without_a_workflow_there_is_nothing_to_do(app: Path) -> None:
    refused(app, "--procs", "1", code="no_workflows", exit_code=2)
    assert not (app / ".pyrula").exists()


@pytest.mark.parametrize(
    ("workflow", "code", "exit_code"),
    [
        ("nowhere", "module_not_found", 2),
        ("app:goodbye", "workflow_not_found", 2),
        ("app:not_one", "not_a_workflow", 2),
        ("app:", "invalid_workflow_target", 2),
        ("broken", "module_failed", 1),
    ],
)
def test_a_workflow_that_can_not_be_served_ends_it_at_once(
    app: Path, workflow: str, code: str, exit_code: int
) -> None:
    argv = ("--procs", "2", "--store", NO_STORE, "--workflow", workflow)
    said = refused(app, *argv, code=code, exit_code=exit_code)
    if code == "module_failed":
        assert "KeyError" in said
        assert f"{app}/broken.py:5 in <module>" in said
        assert f"{app}/broken.py:3 in load_settings" in said


@pytest.mark.parametrize(
    "flag", ["--lock-ttl=soon", "--lock-ttl=0", "--max-concurrent-runs=0", "--stranded-policy=x"]
)
def test_a_wrong_worker_option_is_refused(app: Path, flag: str) -> None:
    argv = ("--procs", "1", "--store", NO_STORE, "--workflow", "app", flag)
    refused(app, *argv, code="invalid_option", exit_code=2)


def test_a_store_that_is_not_there_is_4_after_the_boot_budget(app: Path) -> None:
    argv = ("--procs", "2", "--boot-budget", "1", "--store", NO_STORE, "--workflow", "app")
    refused(app, *argv, code="store_unavailable", exit_code=4)


def test_a_server_that_is_none_is_refused(app: Path) -> None:
    with a_web_server() as url:
        argv = ("--procs", "1", "--boot-budget", "1", "--store", url, "--workflow", "app")
        done = run(app, *argv)
    assert done.returncode in {2, 4}, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("url", ["http://host", "nonsense", "redis://[half", "redis://h:port"])
def test_a_url_that_names_no_store_is_refused(app: Path, url: str) -> None:
    argv = ("--procs", "1", "--store", url, "--workflow", "app")
    refused(app, *argv, code="invalid_store_url", exit_code=2)


def test_a_control_folder_that_can_not_be_written_is_refused(app: Path) -> None:
    (app / "file").touch()
    argv = ("--procs", "1", "--workflow", "app", "--control", "file/supervisor.sock")
    refused(app, *argv, code="control_not_writable", exit_code=2)


def test_a_dot_pyrula_that_can_not_be_written_is_refused(app: Path) -> None:
    (app / ".pyrula").touch()
    argv = ("--procs", "1", "--workflow", "app")
    refused(app, *argv, code="control_not_writable", exit_code=2)
    refused(app, *argv, "--control", "s.sock", code="embedded_not_writable", exit_code=2)


@pytest.mark.parametrize("argv", [["--loop", "trio"], ["--wurkflow", "app"], ["dance"]])
def test_a_usage_error_is_2(app: Path, argv: list[str]) -> None:
    assert run(app, *argv).returncode == 2


def test_every_worker_option_is_a_flag_and_an_environment_variable(app: Path) -> None:
    shown = run(app, "--help").stdout
    assert set(options.WORKER_OPTIONS) == set(WorkerOptions.__dataclass_fields__)
    for name in options.WORKER_OPTIONS:
        assert f"--{name.replace('_', '-')} " in shown
    argv = ("--procs", "1", "--store", NO_STORE, "--workflow", "app")
    env = {"PYRULA_WORKER_LOCK_TTL": "never"}
    said = refused(app, *argv, code="invalid_option", exit_code=2, env=env)
    assert "lock_ttl" in said
    assert "never" in said
    other = refused(app, *argv, "--lock-ttl=x", code="invalid_option", exit_code=2, env=env)
    assert "never" not in other, "the flag wins"


def test_every_own_option_is_an_environment_variable(app: Path) -> None:
    env = {
        "PYRULA_SUPERVISOR_PROCS": "2",
        "PYRULA_SUPERVISOR_WORKFLOW": "app:hello app",
        "PYRULA_SUPERVISOR_CONTROL": "here/s.sock",
        "PYRULA_SUPERVISOR_LOOP": "asyncio",
        "PYRULA_SUPERVISOR_APP_DIR": str(app),
        "PYRULA_STORE_URL": NO_STORE,
    }
    with Supervisor(app, "--entry", "tests.supervisor.children:telling", env=env) as supervisor:
        until(lambda: len(supervisor.journal("told")) == 2, 10)
        told = supervisor.journal("told")[0]
        assert told["workflows"] == ["app:hello", "app"]
        assert (told["loop"], told["app_dir"]) == ("asyncio", str(app))
        assert (app / "here/s.sock").exists()
        assert supervisor.drained() == 0


def has_two_children(supervisor: Supervisor) -> bool:
    return len(supervisor.pids()) == 2


def is_titled(pid: int) -> bool:
    return b"pyrula: " in cmdline(pid)


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_no_secret_of_a_store_url_is_seen_anywhere(app: Path) -> None:
    canary = secrets.token_hex(8)
    url = f"redis://user:{canary}@127.0.0.1:1/0"
    for argv, env in ((("--store", url), {}), ((), {"PYRULA_STORE_URL": url})):
        words = ("--procs", "2", "--workflow", "app", "--boot-budget", "1", *argv)
        with Supervisor(app, *words, env=env) as supervisor:
            until(partial(has_two_children, supervisor), 10)
            for pid in (supervisor.process.pid, *supervisor.pids()):
                until(partial(is_titled, pid))
                assert canary.encode() not in cmdline(pid)
                assert canary.encode() not in Path(f"/proc/{pid}/comm").read_bytes()
            assert canary not in json.dumps(supervisor.status())
            supervisor.signal(signal.SIGUSR1)
            assert supervisor.exit_code(15) == 4
            assert canary not in supervisor.log
            assert ("--store holds a password" in supervisor.log) == bool(argv)
        for path in app.rglob("*"):
            assert path.is_dir() or canary not in path.read_text(errors="replace"), path


def test_the_first_start_in_an_empty_folder_serves_and_says_where(app: Path) -> None:
    with Supervisor(app, "--procs", "2", "--workflow", "app") as supervisor:
        supervisor.wait_ready(2)
        assert f"at unix://{app}/.pyrula/valkey.sock" in supervisor.log
        assert stat.S_IMODE((app / ".pyrula").stat().st_mode) == 0o700
        wanted = [f"pyrula: worker {slot} [ready] runs=0".encode() for slot in (0, 1)]

        def titles() -> list[bytes]:
            return sorted(cmdline(pid).rstrip(b"\0") for pid in supervisor.pids())

        until(lambda: titles() == wanted, 10)
        slots = {event.get("slot") for event in supervisor.events("worker_ready")}
        assert {0, 1} <= slots, "the lines of a child carry its slot"
        assert supervisor.drained() == 0


def test_a_module_that_breaks_later_is_retried_and_not_fatal(app: Path) -> None:
    with Supervisor(app, "--procs", "2", "--workflow", "app") as supervisor:
        supervisor.wait_ready(2)
        (app / "app.py").write_text(BROKEN)
        dead = supervisor.pids()[0]
        os.kill(dead, signal.SIGKILL)
        until(lambda: supervisor.children()[0]["restarts"] >= 2, 10)
        assert supervisor.process.poll() is None
        assert supervisor.children()[0]["last_exit"]["cause"] == "boot"
        (app / "app.py").write_text(APP)
        supervisor.wait_ready(2)
        assert supervisor.drained() == 0
        assert not any(map(is_alive, supervisor.pids()))
