"""`pyrula worker`: one worker process in the foreground.

Owns the command's options; the serving itself is in `serving`. Every worker option is a flag and an
environment variable here, made from the table of `WorkerOptions`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyrula.supervisor.options import WORKER_OPTIONS
from pyrula.workflows.cli.stores import choose_store, resolve_store_url, store_options
from pyrula.workflows.worker.options import WorkerOptions

if TYPE_CHECKING:
    from pyrula.workflows.logs import LogFormat

Command = TypeVar("Command", bound=Callable[..., Any])


def worker_options(command: Command) -> Command:
    """Give a command one text option for each field of `WorkerOptions`; the fields validate."""
    for field in reversed(fields(WorkerOptions)):
        command = click.option(
            f"--{field.name.replace('_', '-')}",
            field.name,
            envvar=f"PYRULA_WORKER_{field.name.upper()}",
            metavar="VALUE",
            help=f"{WORKER_OPTIONS[field.name]} [PYRULA_WORKER_{field.name.upper()}]",
        )(command)
    return command


@click.command()
@click.option(
    "--workflow", "workflows", multiple=True, metavar="MOD[:NAME]",
    help="What to serve: one workflow, or all that a module registers. Repeat for more.",
)  # fmt: skip
@click.option("--app-dir", default=".", show_default=True, help="Put first on sys.path.")
@click.option(
    "--loop", type=click.Choice(["auto", "uvloop", "asyncio"]), default="auto", show_default=True,
    help="Which event loop.",
)  # fmt: skip
@click.option(
    "--boot-budget", type=click.FloatRange(0, 86_400), default=60.0, show_default=True,
    envvar="PYRULA_WORKER_BOOT_BUDGET", show_envvar=True,
    help="Seconds to wait at start for a store that doesn't answer.",
)  # fmt: skip
@click.option(
    "--log-format", type=click.Choice(["auto", "pretty", "json"]), default="auto",
    show_default=True, help="auto: pretty on a terminal, else JSON.",
)  # fmt: skip
@store_options
@worker_options
def worker(
    *,
    workflows: tuple[str, ...],
    app_dir: str,
    loop: str,
    boot_budget: float,
    log_format: LogFormat,
    store: str | None,
    namespace: str,
    shard_count: int,
    **given: str | None,
) -> int:
    """Serve workflows until SIGTERM or SIGINT, then drain; a second signal ends at once.

    Each worker option is also an environment variable: PYRULA_WORKER_MAX_CONCURRENT_RUNS…
    """
    choice = choose_store(store, namespace, shard_count, title="pyrula: worker")
    options = WorkerOptions.from_strings({k: v for k, v in given.items() if v is not None})
    url = resolve_store_url(choice)

    from pyrula.workflows.cli.serving import Serving, serve

    serving = Serving(
        targets=workflows,
        app_dir=app_dir,
        url=url,
        namespace=choice.namespace,
        shard_count=choice.shard_count,
        options=options,
        loop=loop,
        boot_budget_s=boot_budget,
        log_format=log_format,
    )
    return serve(serving)
