"""`pyrula runs …`: submit runs, follow them, look into them.

Owns the commands' options and what each prints: a table or a line for people, one JSON document on
stdout with `--json`. Refuses to run workflows; `pyrula worker` does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, get_args

import click

from pyrula.supervisor.exits import ExitCode
from pyrula.workflows.cli.stores import StoreChoice, choose_store, opened, store_options
from pyrula.workflows.stores.base import Status

if TYPE_CHECKING:
    from pyrula.workflows.client import WorkflowClient

P = ParamSpec("P")

_as_json = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
_workflow = click.option("--workflow", metavar="NAME", help="Decides when an id is ambiguous.")
_timeout = click.option(
    "--timeout", type=click.FloatRange(0, 10**9), metavar="SECONDS", help="Wait no longer."
)


def _command(body: Callable[P, Coroutine[Any, Any, None]]) -> Callable[..., int]:
    """Make an async body with `choice=` a command with the store options."""

    @store_options
    @wraps(body)
    def run(
        *args: P.args,
        **given: P.kwargs,
    ) -> int:
        store, namespace, count = (given.pop(k) for k in ("store", "namespace", "shard_count"))
        title = click.get_current_context().command_path.replace(" ", ": ", 1)
        given["choice"] = choose_store(store, namespace, count, title=title)  # type: ignore[arg-type]
        _quiet_logs()
        import asyncio

        asyncio.run(body(*args, **given))
        return ExitCode.OK

    return run


@click.group()
def runs() -> None:
    """Submit runs, follow them, look into them."""


@runs.command()
@click.argument("name")
@click.argument("params", required=False, metavar="[JSON|-]")
@click.option("--wait", is_flag=True, help="Wait for the end and print the result.")
@_timeout
@click.option("--owner", help="The tenant it runs for.")
@click.option("--run-id", help="An id of your own; the same one again is the same run.")
@click.option("--idempotency-key", help="The same key again is the same run.")
@click.option("--delay", type=float, metavar="SECONDS", help="Don't start it before.")
@_as_json
@_command
async def submit(
    *,
    choice: StoreChoice,
    name: str,
    params: str | None,
    wait: bool,
    timeout: float | None,
    owner: str | None,
    run_id: str | None,
    idempotency_key: str | None,
    delay: float | None,
    as_json: bool,
) -> None:
    """Queue a run of workflow NAME with the keyword params of a JSON object (- reads stdin)."""
    from pyrula.workflows.cli.lookup import params_of
    from pyrula.workflows.client import WorkflowClient
    from pyrula.workflows.stores.names import check_workflow_name

    given = params_of(params)
    check_workflow_name(name)
    async with opened(choice) as store:
        client = WorkflowClient(store)
        run = await client.submit(
            name,
            given,
            owner=owner,
            run_id=run_id,
            idempotency_key=idempotency_key,
            delay=delay,
            trigger="cli",
        )
        if not (await store.register(name, serving=False)).served:
            click.echo(f"no worker has served {name!r} yet; the run waits for one", err=True)
        if wait:
            if not as_json:
                click.echo(f"submitted {run.run_id}", err=True)
            await _print_result(client, name, run.run_id, timeout, as_json=as_json)
        elif as_json:
            _print_json({"run_id": run.run_id, "workflow": name, "status": await run.status()})
        else:
            click.echo(run.run_id)


@runs.command()
@click.argument("run_id")
@_workflow
@_timeout
@_as_json
@_command
async def result(
    *,
    choice: StoreChoice,
    run_id: str,
    workflow: str | None,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Wait until a run has ended and print what it returned."""
    from pyrula.workflows.cli.lookup import find_run
    from pyrula.workflows.client import WorkflowClient

    async with opened(choice) as store:
        ref = await find_run(store, run_id, workflow)
        client = WorkflowClient(store)
        await _print_result(client, ref.workflow, run_id, timeout, as_json=as_json)


@runs.command(name="list")
@click.option("--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option("--status", type=click.Choice(get_args(Status)), help="Only runs with this status.")
@click.option("--owner", help="Only runs of this tenant.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@_as_json
@_command
async def list_(
    *,
    choice: StoreChoice,
    workflow: str | None,
    status: Status | None,
    owner: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List runs, newest first."""
    from pyrula.workflows.cli.documents import run_document

    async with opened(choice) as store:
        names = [workflow] if workflow else await store.workflows()
        found = [
            info
            for name in names
            for info in await store.list_runs(name, status=status, owner=owner, limit=limit)
        ]
    found.sort(key=lambda info: info.created_ms, reverse=True)
    documents = [run_document(info) for info in found[:limit]]
    if as_json:
        _print_json(documents)
    else:
        _tables().show_runs(documents)


@runs.command()
@click.argument("run_id")
@_workflow
@_as_json
@_command
async def show(*, choice: StoreChoice, run_id: str, workflow: str | None, as_json: bool) -> None:
    """Show what is known of a run, with its params and its outcome."""
    from pyrula.workflows.cli.documents import full_document
    from pyrula.workflows.cli.lookup import find_run, read_events

    async with opened(choice) as store:
        ref = await find_run(store, run_id, workflow)
        document = full_document(await store.info(ref), await read_events(store, ref))
    if as_json:
        _print_json(document)
    else:
        _tables().show_run(document)


@runs.command()
@click.argument("run_id")
@_workflow
@_as_json
@_command
async def events(*, choice: StoreChoice, run_id: str, workflow: str | None, as_json: bool) -> None:
    """Show a run's journal."""
    from pyrula.workflows.cli.documents import event_document
    from pyrula.workflows.cli.lookup import find_run, read_events

    async with opened(choice) as store:
        ref = await find_run(store, run_id, workflow)
        documents = [event_document(seq, event) for seq, event in await read_events(store, ref)]
    if as_json:
        _print_json(documents)
    else:
        _tables().show_events(documents)


@runs.command()
@click.argument("run_ids", nargs=-1, required=True, metavar="RUN_ID…")
@_workflow
@_as_json
@_command
async def cancel(
    *, choice: StoreChoice, run_ids: tuple[str, ...], workflow: str | None, as_json: bool
) -> None:
    """Ask runs to end; the body of one that is in a step is interrupted."""
    from pyrula.workflows.cli.lookup import find_run

    async with opened(choice) as store:
        # All are looked up first, so that a mistyped id cancels nothing.
        refs = [await find_run(store, run_id, workflow) for run_id in run_ids]
        documents = [
            {"run_id": ref.run_id, "workflow": ref.workflow, "status": await store.cancel(ref)}
            for ref in refs
        ]
    if as_json:
        _print_json(documents)
    else:
        for document in documents:
            click.echo(f"cancel requested: {document['run_id']} (was {document['status']})")


async def _print_result(
    client: WorkflowClient,
    name: str,
    run_id: str,
    timeout: float | None,
    *,
    as_json: bool,
) -> None:
    from pyrula.workflows.stores.errors import PyrulaError

    try:
        value = await client.handle(name, run_id).result(timeout)
    except PyrulaError as error:
        error.detail = {**error.detail, "run_id": run_id, "workflow": name}
        if kind := getattr(error, "error_type", ""):
            error.detail["error_type"] = kind
        raise
    finally:
        await client.close()
    if as_json:
        document = {"run_id": run_id, "workflow": name, "status": "completed", "result": value}
        _print_json(document)
    else:
        click.echo(json.dumps(value, indent=2))


def _print_json(document: Any) -> None:
    click.echo(json.dumps(document))


def _tables() -> Any:
    """Loaded late: rich is slow to import."""
    from pyrula.workflows.cli import tables

    return tables


def _quiet_logs() -> None:
    import logging

    from pyrula.workflows.logs import configure_logs

    configure_logs(level=logging.ERROR)
