"""`pyrula worker` as a process: serving, draining, refusing, and keeping secrets."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from pyrula.workflows.cli.worker import worker
from pyrula.workflows.worker.options import WorkerOptions
from tests.support.cli import PYRULA, run_pyrula, worker_process, worker_starting
from tests.support.until import until
from tests.support.valkey import ValkeyServer

APP = """
import pathlib, time
from pyrula.workflows import workflow

@workflow
async def greet(ctx, who: str = "you") -> str:
    return await ctx.step("compose", lambda: f"hello {who}")

@workflow
async def block(ctx) -> None:
    pathlib.Path("blocking").touch()
    time.sleep(30)

plain = 7
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture
def env(valkey_url: str, namespace: str) -> dict[str, str]:
    return {
        "PYRULA_STORE_URL": valkey_url,
        "PYRULA_VALKEY_NAMESPACE": namespace,
        "PYRULA_SHARD_COUNT": "4",
        "PYRULA_WORKER_BOOT_BUDGET": "0",
    }


def test_it_serves_and_drains_on_term(app: Path, env: dict[str, str]) -> None:
    with worker_process("--workflow", "app", env=env, cwd=app) as (process, log):
        said = run_pyrula("runs", "submit", "greet", "--wait", "--json", env=env, cwd=app)
        assert (said.code, said.json["result"], said.err) == (0, "hello you", "")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert "worker_stopped" in log.read_text()


def test_ctrl_c_ends_a_wait_without_a_word(app: Path, env: dict[str, str]) -> None:
    process = subprocess.Popen(
        [PYRULA, "runs", "submit", "greet", "--wait"],
        env=os.environ | env,
        cwd=app,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines = [process.stderr.readline(), process.stderr.readline()]
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=10)[1]
    assert (process.returncode, rest.strip()) == (130, "")
    assert lines[0].startswith("no worker has served 'greet' yet")
    assert lines[1].startswith("submitted ")


def test_a_reader_that_has_seen_enough_is_no_error(app: Path, env: dict[str, str]) -> None:
    for number in range(3):
        run_id = f"{number:02}-{'x' * 200}"
        assert run_pyrula("runs", "submit", "greet", "--run-id", run_id, env=env, cwd=app).code == 0
    process = subprocess.Popen(
        [PYRULA, "runs", "list", "--json"],
        env=os.environ | env,
        cwd=app,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(10) == 0


def test_only_the_named_workflow_is_served(app: Path, env: dict[str, str]) -> None:
    with worker_process("--workflow", "app:greet", env=env, cwd=app) as (_, log):
        assert '"workflows": ["greet"]' in log.read_text()


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [(signal.SIGTERM, signal.SIGTERM, 143), (signal.SIGINT, signal.SIGINT, 130)],
)
def test_a_second_signal_ends_it_at_once(
    app: Path, env: dict[str, str], first: int, second: int, status: int
) -> None:
    (app / "slow.py").write_text(
        "import asyncio, pathlib\n"
        "from pyrula.workflows import workflow\n"
        "@workflow\n"
        "async def slow(ctx):\n"
        "    pathlib.Path('begun').touch()\n"
        "    await asyncio.sleep(60)\n"
    )
    with worker_process("--workflow", "slow", env=env, cwd=app) as (process, log):
        run_pyrula("runs", "submit", "slow", env=env, cwd=app)
        until((app / "begun").exists, 10)
        process.send_signal(first)
        until(lambda: "worker_draining" in log.read_text(), 10)
        process.send_signal(second)
        assert process.wait(5) == status


def test_every_worker_option_is_a_flag_and_a_variable() -> None:
    options = {option.name: option for option in worker.params}
    for field in fields(WorkerOptions):
        option = options[field.name]
        assert option.opts == [f"--{field.name.replace('_', '-')}"]
        assert option.envvar == f"PYRULA_WORKER_{field.name.upper()}"


BROKEN = "def helper():\n    raise RuntimeError('half done')\nhelper()\n"


@pytest.mark.parametrize(
    ("argv", "extra", "status", "code"),
    [
        ((), {}, 2, "no_workflows"),
        (("--workflow", "missing"), {}, 2, "module_not_found"),
        (("--workflow", "app:missing"), {}, 2, "workflow_not_found"),
        (("--workflow", "app:plain"), {}, 2, "not_a_workflow"),
        (("--workflow", "empty"), {}, 2, "no_workflows"),
        (("--workflow", "a b"), {}, 2, "invalid_workflow_target"),
        (("--workflow", "app", "--app-dir", "nowhere"), {}, 2, "app_dir_not_found"),
        (("--workflow", "app", "--max-concurrent-runs", "0"), {}, 2, "invalid_option"),
        (("--workflow", "app"), {"PYRULA_WORKER_LOCK_TTL": "long"}, 2, "invalid_option"),
        (("--workflow", "app"), {"PYRULA_SHARD_COUNT": "0"}, 2, "invalid_option"),
        (("--workflow", "app"), {"PYRULA_SHARD_COUNT": "many"}, 2, "usage"),
        (("--workflow", "app"), {"PYRULA_VALKEY_NAMESPACE": "{x}"}, 2, "invalid_namespace"),
        (("--workflow", "app"), {"PYRULA_STORE_URL": "unix:///none"}, 4, "store_unavailable"),
        (("--workflow", "broken"), {}, 1, "module_failed"),
        (("--workflow", "half"), {}, 1, "module_failed"),
        (("--workflow", "syntax"), {}, 1, "module_failed"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(
    app: Path,
    env: dict[str, str],
    argv: tuple[str, ...],
    extra: dict[str, str],
    status: int,
    code: str,
) -> None:
    (app / "empty.py").write_text("")
    (app / "broken.py").write_text(BROKEN)
    (app / "half.py").write_text("import not_installed_anywhere\n")
    (app / "syntax.py").write_text("def\n")
    said = run_pyrula("worker", *argv, env=env | extra, cwd=app)
    assert (said.code, said.out) == (status, "")
    assert said.err.startswith(f"Error [{code}]: ")
    assert "Traceback" not in said.err
    frames = said.err.splitlines()[1:]
    assert all("app" not in frame or str(app) in frame for frame in frames)
    if argv == ("--workflow", "broken"):
        assert [frame.strip() for frame in frames] == [
            f"{app}/broken.py:3 in <module>",
            f"{app}/broken.py:2 in helper",
        ]
    elif code != "module_failed":
        assert frames == []


def test_another_shard_count_is_refused(app: Path, env: dict[str, str]) -> None:
    run_pyrula("runs", "submit", "greet", env=env, cwd=app)
    other = env | {"PYRULA_SHARD_COUNT": "8"}
    said = run_pyrula("worker", "--workflow", "app", env=other, cwd=app)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert said.err.startswith("Error [shard_count_mismatch]: ")


def test_a_store_that_comes_late_is_waited_for(app: Path, env: dict[str, str]) -> None:
    with ValkeyServer() as server:
        server.kill()
        late = env | {"PYRULA_STORE_URL": server.url}
        with worker_starting("--workflow", "app", "--boot-budget", "20", env=late, cwd=app) as (
            process,
            log,
        ):
            until(lambda: "store_unavailable" in log.read_text(), 10)
            server.start()
            until(lambda: "worker_ready" in log.read_text(), 10)
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0


def test_the_password_of_a_store_url_appears_nowhere(
    app: Path, env: dict[str, str], private_valkey: Callable[..., ValkeyServer]
) -> None:
    canary = f"canary{secrets.token_hex(8)}"
    server = private_valkey(tcp=True, requirepass=canary)
    url = server.tcp_url
    del env["PYRULA_STORE_URL"]
    said = run_pyrula("runs", "list", "--store", url, env=env, cwd=app)
    assert said.code == 0
    assert "set PYRULA_STORE_URL instead" in said.err
    heard = said.out + said.err
    for wrong in (url.replace(canary, canary + "x"), url + "#x", url.replace("redis", "r")):
        for form in ((), ("--json",)):
            refused = run_pyrula("runs", "list", *form, "--store", wrong, env=env, cwd=app)
            assert refused.code == 2
            heard += refused.out + refused.err
    with worker_process("--workflow", "app", "--store", url, env=env, cwd=app) as (process, log):
        argv = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        titles = Path(f"/proc/{process.pid}/comm").read_bytes()
        assert argv.startswith(b"pyrula: worker")
        server.kill()
        until(lambda: "store" in log.read_text().split("worker_ready")[1], 10)
        server.start()
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        heard += log.read_text() + (argv + titles).decode()
    assert canary not in heard
