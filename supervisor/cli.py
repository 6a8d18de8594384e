"""The command `pyrula-supervisor`.

Owns flags, environment and their precedence (flag, environment, default), and turns every refusal
into one sentence and an exit status. Refuses to start anything half configured.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from setproctitle import setproctitle

from pyrula.supervisor import control, logs, options, procfs, status
from pyrula.supervisor.embedded import EmbeddedServer
from pyrula.supervisor.exits import ExitCode, SupervisorError
from pyrula.supervisor.parent import Parent
from pyrula.supervisor.pool import KILL_MARGIN_S, PoolOptions
from pyrula.supervisor.signals import SignalInbox

ENTRY = "pyrula.workflows.worker.child:main"
DEFAULT_CONTROL = ".pyrula/supervisor.sock"


def _worker_flags(command: Any) -> Any:
    for name in reversed(list(options.WORKER_OPTIONS)):
        flag = "--" + name.replace("_", "-")
        variable = f"PYRULA_WORKER_{name.upper()}"
        text = f"{options.WORKER_OPTIONS[name]} [{variable}]"
        option = click.option(flag, name, metavar="VALUE", envvar=variable, help=text)
        command = option(command)
    return command


def _env(name: str, *others: str) -> list[str]:
    return [f"PYRULA_SUPERVISOR_{name}", *others]


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pyrula", message="%(package)s %(version)s")
@click.option(
    "--procs", default="auto", envvar=_env("PROCS"), help="a number, or auto", metavar="N"
)
@click.option(
    "--workflow",
    "workflows",
    multiple=True,
    metavar="MOD[:NAME]",
    envvar=_env("WORKFLOW"),
    help="what to serve; repeat it for more",
)
@click.option(
    "--store",
    envvar=_env("STORE", "PYRULA_STORE_URL"),
    metavar="URL",
    help="store URL; without one an embedded server is started in ./.pyrula",
)
@click.option(
    "--store-id",
    envvar=_env("STORE_ID", "PYRULA_STORE_ID"),
    help="refuse a server that doesn't carry this id",
)
@click.option(
    "--namespace",
    envvar=_env("NAMESPACE", "PYRULA_VALKEY_NAMESPACE"),
    default="default",
    help="keeps the runs of several products on one server apart",
)
@click.option(
    "--shard-count",
    envvar=_env("SHARD_COUNT", "PYRULA_SHARD_COUNT"),
    type=int,
    help="of a new store; an existing one knows its own",
)
@click.option(
    "--app-dir",
    default=".",
    envvar=_env("APP_DIR"),
    metavar="DIR",
    help="put on sys.path of the workers",
)
@click.option(
    "--control",
    "control_path",
    default=DEFAULT_CONTROL,
    envvar=_env("CONTROL"),
    metavar="PATH",
    help="control socket; its folder keeps what a later supervisor must finish",
)
@click.option(
    "--loop",
    type=click.Choice(["auto", "uvloop", "asyncio"]),
    default="auto",
    envvar=_env("LOOP"),
    help="event loop of the workers",
)
@click.option(
    "--boot-budget",
    type=click.FloatRange(min=0.1),
    default=60.0,
    metavar="SECONDS",
    envvar=_env("BOOT_BUDGET"),
    help="how long a worker may take to get ready",
)
@click.option(
    "--crash-loop-exit",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    envvar=_env("CRASH_LOOP_EXIT"),
    help="give up after a crash loop of that long; off by default",
)
@click.option(
    "--log-format",
    type=click.Choice(["auto", "pretty", "json"]),
    default="auto",
    envvar=_env("LOG_FORMAT"),
    help="auto: pretty on a terminal, else JSON",
)
@click.option("--entry", default=ENTRY, hidden=True, help="child entry point, for tests")
@_worker_flags
@click.pass_context
def cli(context: click.Context, /, **given: Any) -> None:
    """Run N worker processes and watch them from outside.

    Each option can also be set by environment: PYRULA_SUPERVISOR_<OPTION>, and for options of the
    workers the variable named beside it. A flag wins. TERM and INT drain; a second one kills.

    Exit status: 0 drained, 1 no worker could start or one had to be killed, 2 wrong usage, 4 the
    store can't be reached, 70 crash loop, 130 or 143 killed by a second signal.
    """
    if context.invoked_subcommand is not None:
        context.obj = given["control_path"]
        return
    signals = SignalInbox()  # from here on no signal is lost, however early it comes
    _hide_secret(given["store"])
    logs.configure(given["log_format"])
    context.exit(_run(given, signals))


@cli.command("status")
@click.option("--json", "as_json", is_flag=True, help="one JSON document")
@click.option("--control", "control_path", default=None, help="control socket")
@click.pass_context
def show_status(context: click.Context, *, as_json: bool, control_path: str | None) -> None:
    """Show the pool: one row a worker.

    With several supervisors in the folder --json gives a list of their documents.
    """
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
        document = control.error_document(error.code, error.message)
        sys.stderr.write(json.dumps(document) + "\n")
    else:
        logs.say(f"{error.message} [{error.code}]")
    raise SystemExit(int(error.exit))


def _run(given: dict[str, Any], signals: SignalInbox) -> int:
    path = Path(given["control_path"])
    pool = _pool_options(given, path.parent)
    listening = control.ControlSocket(path)
    embedded: EmbeddedServer | None = None
    try:
        if not pool.store_url:
            embedded = EmbeddedServer(Path(".pyrula"))
            if not embedded.start(signals.wait):
                return ExitCode.OK
            pool = replace(pool, store_url=embedded.url)
            _say_where(embedded)
        parent = Parent(
            pool,
            signals=signals,
            control=listening,
            embedded=embedded,
            crash_loop_exit_s=given["crash_loop_exit"],
        )
        return parent.run()
    finally:
        listening.close()
        if embedded is not None:
            embedded.stop()


def _pool_options(given: dict[str, Any], run_dir: Path) -> PoolOptions:
    if not given["workflows"]:
        raise SupervisorError(
            "expected at least one --workflow module[:name], found none; name the module that "
            "holds your @workflow functions",
            code="no_workflows",
        )
    chosen = options.given(given)
    grace = options.number(chosen, "shutdown_grace")
    return PoolOptions(
        procs=_procs(given["procs"]),
        entry=given["entry"],
        store_url=given["store"] or "",
        namespace=given["namespace"],
        store_id=given["store_id"],
        shard_count=given["shard_count"],
        workflows=tuple(given["workflows"]),
        app_dir=os.path.abspath(given["app_dir"]),
        options=chosen,
        loop=given["loop"],
        boot_budget=given["boot_budget"],
        page_runs=min(10_000, max(1, int(options.number(chosen, "max_concurrent_runs")))),
        page_threads=min(32, (os.cpu_count() or 1) + 4),
        drain_deadline=grace + 3 * options.number(chosen, "cancel_timeout") + KILL_MARGIN_S,
        run_dir=run_dir.absolute(),
        log_format=given["log_format"],
    )


def _say_where(embedded: EmbeddedServer) -> None:
    how = "uses the embedded server that runs" if embedded.adopted else "started a server"
    logs.say(f"{how} at {embedded.url}")


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
    # Cruder than the grammar of URLs: one that can't be parsed may hold a password too.
    if url is not None and "@" in url and any(url in word for word in sys.argv):
        logs.say(
            "--store holds a password, which others could read in the process list for a moment; "
            "set PYRULA_STORE_URL instead"
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
