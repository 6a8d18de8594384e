"""The command `pyrula-supervisor`.

Owns flags, environment and their precedence (flag, environment, default), and turns every refusal
into one sentence and an exit status. Refuses to start anything half configured.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.table import Table
from setproctitle import setproctitle

from pyrula.supervisor import control, logs, options, procfs, status
from pyrula.supervisor.child import MANAGED
from pyrula.supervisor.embedded import EmbeddedServer, running_url
from pyrula.supervisor.exits import ExitCode, SupervisorError
from pyrula.supervisor.parent import Parent
from pyrula.supervisor.pool import KILL_MARGIN_S, PoolOptions

ENTRY = "pyrula.workflows.worker.child:main"
DEFAULT_CONTROL = ".pyrula/supervisor.sock"


def _worker_flags(command: Any) -> Any:
    for name in reversed(options.WORKER_OPTIONS):
        flag = "--" + name.replace("_", "-")
        command = click.option(flag, name, metavar="VALUE", help=f"worker option {name}")(command)
    return command


@click.group(
    invoke_without_command=True, context_settings={"auto_envvar_prefix": "PYRULA_SUPERVISOR"}
)
@click.option("--procs", default="auto", help="worker processes: a number, or auto")
@click.option("--workflow", "workflows", multiple=True, metavar="MOD[:NAME]", help="what to serve")
@click.option("--store", envvar="PYRULA_STORE_URL", help="store URL; none starts an embedded one")
@click.option("--namespace", envvar="PYRULA_VALKEY_NAMESPACE", default="default")
@click.option("--shard-count", envvar="PYRULA_SHARD_COUNT", type=int)
@click.option("--app-dir", default=".", help="put on sys.path of the workers")
@click.option("--control", "control_path", default=DEFAULT_CONTROL, help="control socket")
@click.option("--loop", type=click.Choice(["auto", "uvloop", "asyncio"]), default="auto")
@click.option("--boot-budget", type=click.FloatRange(min=1), default=60.0, help="seconds")
@click.option("--crash-loop-exit", type=click.FloatRange(min=0), help="seconds; off by default")
@click.option("--log-format", type=click.Choice(["auto", "pretty", "json"]), default="auto")
@click.option("--entry", default=ENTRY, hidden=True, help="child entry point, for tests")
@_worker_flags
@click.pass_context
def cli(context: click.Context, **given: Any) -> None:
    """Run N worker processes and watch them from outside."""
    if context.invoked_subcommand is not None:
        context.obj = given["control_path"]
        return
    _hide_secret(given["store"])
    logs.configure(given["log_format"])
    # From here on no TERM is lost, however early it comes.
    signal.pthread_sigmask(signal.SIG_BLOCK, MANAGED)
    context.exit(_run(given))


@cli.command("status")
@click.option("--json", "as_json", is_flag=True, help="one JSON document")
@click.option("--control", "control_path", default=None, help="control socket")
@click.pass_context
def show_status(context: click.Context, *, as_json: bool, control_path: str | None) -> None:
    """Show the pool: one row a worker."""
    path = Path(control_path or context.obj)
    found = [control.ask(one, {"command": "status"}) for one in control.live(path) or [path]]
    if as_json:
        click.echo(json.dumps(found[0] if len(found) == 1 else found))
        return
    for one in found:
        Console().print(_table(one))


def main(argv: list[str] | None = None) -> None:
    """Entry point; never shows a traceback of ours."""
    try:
        cli.main(argv, prog_name="pyrula-supervisor", standalone_mode=True)
    except SupervisorError as error:
        _refuse(error, as_json="--json" in (argv if argv is not None else sys.argv))


def _refuse(error: SupervisorError, *, as_json: bool) -> None:
    if as_json:
        document = {"error": {"code": error.code, "message": error.message, "detail": {}}}
        sys.stderr.write(json.dumps(document) + "\n")
    else:
        sys.stderr.write(f"pyrula-supervisor: {error.message} [{error.code}]\n")
    raise SystemExit(int(error.exit))


def _run(given: dict[str, Any]) -> int:
    worker_options = options.given(given)
    procs = _procs(given["procs"])
    if not given["workflows"]:
        raise SupervisorError(
            "expected at least one --workflow module[:name], found none; name the module that "
            "holds your @workflow functions",
            code="no_workflows",
        )
    path = Path(given["control_path"])
    # The folder of the control socket holds all that a supervisor keeps.
    listening = control.ControlSocket(path)
    try:
        store, embedded = _store(given["store"], path.parent)
    except BaseException:
        listening.close()
        raise
    pool_options = PoolOptions(
        procs=procs,
        entry=given["entry"],
        store_url=store,
        namespace=given["namespace"],
        shard_count=given["shard_count"],
        workflows=tuple(given["workflows"]),
        app_dir=os.path.abspath(given["app_dir"]),
        options=worker_options,
        loop=given["loop"],
        boot_budget=given["boot_budget"],
        page_runs=max(1, int(options.number(worker_options, "max_concurrent_runs"))),
        page_threads=min(32, (os.cpu_count() or 1) + 4),
        drain_deadline=options.number(worker_options, "shutdown_grace")
        + 3 * options.number(worker_options, "cancel_timeout")
        + KILL_MARGIN_S,
        run_dir=path.parent.absolute(),
        log_format=cast("logs.Format", given["log_format"]),
    )
    return Parent(pool_options, listening, embedded, given["crash_loop_exit"]).run()


def _store(url: str | None, folder: Path) -> tuple[str, EmbeddedServer | None]:
    if url:
        return url, None
    server = EmbeddedServer(folder)
    already = running_url(folder)
    server.start()
    how = "uses the embedded server that runs" if already else "started an embedded server"
    sys.stderr.write(f"pyrula-supervisor: {how} at {server.url}\n")
    return server.url, server


def _procs(text: str) -> int:
    if text == "auto":
        return procfs.usable_cpus()
    if text.isdecimal() and 1 <= int(text) <= 1_000:
        return int(text)
    raise SupervisorError(
        f"expected --procs to be auto or a number from 1 to 1000, found {text!r}",
        code="invalid_option",
    )


def _hide_secret(url: str | None) -> None:
    """A password given in argv is gone from there before anything is started."""
    setproctitle("pyrula: supervisor [starting]")
    in_argv = url is not None and any(url in word for word in sys.argv)
    if url is not None and in_argv and urlsplit(url).password:
        sys.stderr.write(
            "pyrula-supervisor: --store holds a password, which others could read in the process "
            "list for a moment; set PYRULA_STORE_URL instead\n"
        )


def _table(found: dict[str, Any]) -> Table:
    head = found["supervisor"]
    title = f"supervisor {head['pid']} on {head['host']}: {head['state']}, "
    table = Table(title=f"{title}{head['ready']}/{head['procs']} ready")
    for column in ("slot", "pid", "state", "restarts", "runs", "executing", "memory"):
        table.add_column(column)
    for row in status.rows(found):
        table.add_row(*row)
    return table
