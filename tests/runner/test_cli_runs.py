"""`pyrula runs …`: what it prints, what it refuses, and with which exit code."""

from __future__ import annotations

import asyncio
import io
import socketserver
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pyrula.supervisor.embedded import EmbeddedServer
from pyrula.workflows.client import WorkflowClient
from pyrula.workflows.engine.registry import workflow
from pyrula.workflows.stores.valkey.store import ValkeyStore
from pyrula.workflows.worker.worker import WorkflowWorker
from tests.support.cli import Cli

ESCAPE = "\x1b[2J"


@workflow(name="cli_greet")
async def greet(ctx: object, who: str) -> str:
    return f"hello {who}"


@workflow(name="cli_fail")
async def fail(ctx: object) -> None:
    raise ValueError(f"no{ESCAPE}way")


@workflow(name="cli_returns")
async def returns(ctx: object, what: str) -> object:
    return {"object": object(), "nan": float("nan"), "big": "x" * 2_000_000}[what]


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str],
    valkey_url: str,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    return Cli(capsys, valkey_url, namespace, monkeypatch)


@pytest.fixture
def serve(valkey_url: str, namespace: str) -> Callable[..., None]:
    """Serve the workflows here until the given runs have ended."""

    async def until_ended(runs: tuple[tuple[str, str], ...]) -> None:
        store = ValkeyStore(valkey_url, namespace=namespace, shard_count=4)
        worker = WorkflowWorker(store=store, workflows=[greet, fail, returns])
        serving = asyncio.create_task(worker.run())
        client = WorkflowClient(store)
        for name, run_id in runs:
            await client.terminal(client.handle(name, run_id), 10)
        worker.stop()
        await serving
        await client.close()
        await store.close()

    return lambda *runs: asyncio.run(until_ended(runs))


def test_submit_prints_the_id_and_says_that_nobody_serves_the_name(cli: Cli) -> None:
    said = cli("runs", "submit", "cli_greet", '{"who":"a"}', "--run-id", "r1")
    assert (said.code, said.out) == (0, "r1\n")
    assert said.err == "no worker has served 'cli_greet' yet; the run waits for one\n"
    assert cli("runs", "show", "r1", "--json").json["status"] == "queued"


def test_params_are_read_from_stdin(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"who": "stdin"}'))
    assert cli("runs", "submit", "cli_greet", "-", "--run-id", "r1").code == 0
    assert cli("runs", "show", "r1", "--json").json["params"] == {"who": "stdin"}


@pytest.mark.parametrize("params", ["[1]", '"text"', "7", "null", "true", "{", "", "NaN"])
def test_params_that_are_no_object_are_refused(cli: Cli, params: str) -> None:
    said = cli("runs", "submit", "cli_greet", params, "--json")
    assert (said.code, said.out, said.error["code"]) == (2, "", "invalid_params")
    assert cli("runs", "list", "--json").json == []


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("submit", "cli_greet", "--run-id", "a b"), "invalid_run_id"),
        (("submit", "cli_greet", "--run-id", "a~1"), "invalid_run_id"),
        (("submit", "no name"), "invalid_workflow_name"),
        (("submit", "cli_greet", "--owner", "a\nb"), "invalid_owner"),
        (("submit", "cli_greet", "--delay", "-1"), "invalid_delay"),
        (("submit", "cli_greet", "--idempotency-key", " "), "invalid_idempotency_key"),
        (("show", "{x}"), "invalid_run_id"),
        (("list", "--limit", "0"), "usage"),
        (("list", "--status", "great"), "usage"),
        (("list", "--unheard-of"), "usage"),
        (("unheard-of",), "usage"),
    ],
)
def test_bad_input_is_a_sentence_and_exit_2(cli: Cli, argv: tuple[str, ...], code: str) -> None:
    said = cli("runs", *argv, "--json")
    assert (said.code, said.out, said.error["code"]) == (2, "", code)
    people = cli("runs", *argv)
    assert people.code == 2
    assert people.err.startswith("Error [")
    assert people.err.count("\n") == 1


def test_what_is_not_there_is_refused_with_6(cli: Cli) -> None:
    for command in ("show", "events", "result", "cancel"):
        said = cli("runs", command, "r1", "--json")
        assert (said.code, said.error["code"]) == (6, "run_not_found")


def test_a_key_with_other_params_is_a_conflict(cli: Cli) -> None:
    keyed = ("runs", "submit", "cli_greet", "--json", "--idempotency-key", "k")
    first = cli(*keyed, '{"who":"a"}')
    again = cli(*keyed, '{"who":"a"}')
    assert first.json["run_id"] == again.json["run_id"]
    other = cli(*keyed, '{"who":"b"}')
    assert (other.code, other.error["code"]) == (6, "idempotency_mismatch")


def test_an_id_shared_by_two_names_lists_them(cli: Cli) -> None:
    cli("runs", "submit", "cli_greet", "--run-id", "same")
    cli("runs", "submit", "cli_fail", "--run-id", "same")
    said = cli("runs", "show", "same", "--json")
    assert (said.code, said.error["code"]) == (2, "ambiguous_run_id")
    assert said.error["detail"] == {"workflows": ["cli_fail", "cli_greet"]}
    chosen = cli("runs", "show", "same", "--json", "--workflow", "cli_fail")
    assert chosen.json["workflow"] == "cli_fail"


def test_a_mistyped_id_cancels_nothing(cli: Cli) -> None:
    cli("runs", "submit", "cli_greet", "--run-id", "r1")
    assert cli("runs", "cancel", "r1", "r2").code == 6
    assert cli("runs", "show", "r1", "--json").json["status"] == "queued"
    assert cli("runs", "cancel", "r1", "--json").json == [
        {"run_id": "r1", "workflow": "cli_greet", "status": "queued"}
    ]


def test_results_errors_and_journals_are_shown(cli: Cli, serve: Callable[..., None]) -> None:
    cli("runs", "submit", "cli_greet", '{"who":"a"}', "--run-id", "good", "--owner", "t1")
    cli("runs", "submit", "cli_fail", "--run-id", "bad")
    serve(("cli_greet", "good"), ("cli_fail", "bad"))

    good = cli("runs", "result", "good", "--json")
    assert good.json == {
        "run_id": "good",
        "workflow": "cli_greet",
        "status": "completed",
        "result": "hello a",
    }
    assert cli("runs", "result", "good").out == '"hello a"\n'
    bad = cli("runs", "result", "bad", "--json")
    assert (bad.code, bad.out, bad.error["code"]) == (5, "", "workflow_failed")
    assert bad.error["detail"]["error_type"] == "ValueError"
    assert cli("runs", "show", "bad", "--json").json["error"]["message"] == f"no{ESCAPE}way"
    kinds = [event["event"] for event in cli("runs", "events", "good", "--json").json]
    assert kinds == ["run:init", "run:complete"]
    assert cli("runs", "cancel", "good", "--json").error["code"] == "run_finished"
    listed = cli("runs", "list", "--json", "--owner", "t1").json
    assert [run["run_id"] for run in listed] == ["good"]


@pytest.mark.parametrize(
    ("name", "params", "code"),
    [
        ("cli_greet", "{}", "invalid_params"),
        ("cli_greet", '{"who":"a","more":1}', "invalid_params"),
        ("cli_greet", '{"who":7}', "invalid_params"),
        ("cli_returns", '{"what":"object"}', "payload_not_serialisable"),
        ("cli_returns", '{"what":"nan"}', "payload_not_serialisable"),
        ("cli_returns", '{"what":"big"}', "payload_too_large"),
    ],
)
def test_wrong_params_and_results_are_the_run_s_own_error(
    cli: Cli, serve: Callable[..., None], name: str, params: str, code: str
) -> None:
    assert cli("runs", "submit", name, params, "--run-id", "r").code == 0
    serve((name, "r"))
    said = cli("runs", "result", "r", "--json")
    assert (said.code, said.error["code"]) == (5, code)
    assert cli("runs", "show", "r", "--json").json["status"] == "failed"


def test_nothing_stored_can_drive_the_terminal(cli: Cli, serve: Callable[..., None]) -> None:
    cli("runs", "submit", "cli_greet", '{"who":"\\u001b[2J"}', "--run-id", "good")
    cli("runs", "submit", "cli_fail", "--run-id", "bad")
    serve(("cli_greet", "good"), ("cli_fail", "bad"))
    for argv in (["list"], ["show", "good"], ["show", "bad"], ["events", "bad"], ["result", "bad"]):
        said = cli("runs", *argv)
        assert "\x1b" not in said.out + said.err
    assert "no\\x1b[2Jway" in cli("runs", "result", "bad").err


def test_a_wait_that_is_over_exits_7(cli: Cli) -> None:
    said = cli("runs", "submit", "cli_greet", "--wait", "--timeout", "0.05", "--json")
    assert (said.code, said.out) == (7, "")
    error = next(line for line in said.err.splitlines() if line.startswith("{"))
    assert '"result_timeout"' in error
    assert '"run_id"' in error


def test_without_a_store_one_sentence(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PYRULA_STORE_URL")
    monkeypatch.chdir(tmp_path)
    said = cli("runs", "list", "--json")
    assert (said.code, said.error["code"]) == (2, "no_store")


def test_the_embedded_server_of_the_folder_is_found(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not pytest's folder: the path of a unix socket may have no more than 107 bytes.
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.chdir(folder)
        server = EmbeddedServer(Path(folder, ".pyrula"))
        server.start()
        try:
            cli("runs", "submit", "cli_greet", "--run-id", "kept")
            monkeypatch.delenv("PYRULA_STORE_URL")
            cli("runs", "submit", "cli_greet", "--run-id", "here")
            assert [run["run_id"] for run in cli("runs", "list", "--json").json] == ["here"]
        finally:
            server.stop()
        assert cli("runs", "list", "--json").error["code"] == "no_store"


def test_the_flag_wins_over_the_environment(cli: Cli, tmp_path: Path) -> None:
    said = cli("runs", "list", "--json", "--store", f"unix://{tmp_path}/nothing")
    assert (said.code, said.error["code"]) == (4, "store_unavailable")


class NotAStore(socketserver.BaseRequestHandler):
    """Speaks something else and hangs up."""

    def handle(self) -> None:
        self.request.recv(100)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_a_server_of_another_kind_is_a_sentence(cli: Cli) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), NotAStore) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"redis://127.0.0.1:{server.server_address[1]}"
        said = cli("runs", "list", "--json", "--store", url)
        server.shutdown()
        thread.join()
    assert (said.code, said.out) == (2, "")
    assert said.error["code"] == "store_wrong_server"


@pytest.mark.parametrize("url", ["ftp://host", "valkey://", "redis://h:port", "sqlite:///x.db"])
def test_a_url_that_cannot_be_used_is_a_sentence(cli: Cli, url: str) -> None:
    said = cli("runs", "list", "--json", "--store", url)
    assert (said.code, said.out) == (2, "")
    assert said.error["code"] in {"invalid_store_url", "store_not_supported"}
