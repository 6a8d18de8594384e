"""Which store a command talks to.

Owns the precedence `--store`, PYRULA_STORE_URL, the embedded server of this folder, and that a
password given in `--store` stays visible to nobody: the process title is overwritten and a warning
says where it belongs. Refuses to guess a store.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from pyrula.workflows.stores.base import Store
from pyrula.workflows.stores.errors import ConfigurationError

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class StoreChoice:
    """What the store options said; `url` None leaves the choice to the folder."""

    url: str | None
    namespace: str
    shard_count: int


def store_options(command: Command) -> Command:
    """Give a command `--store`, `--namespace` and `--shard-count`, handed over as `choice`."""
    options = (
        click.option(
            "--store", metavar="URL", envvar="PYRULA_STORE_URL", show_envvar=True,
            help="valkey://, valkeys://, redis://, rediss:// or unix:///path.",
        ),
        click.option(
            "--namespace", envvar="PYRULA_VALKEY_NAMESPACE", show_envvar=True,
            default="default", show_default=True, help="Keeps several stores apart on one server.",
        ),
        click.option(
            "--shard-count", type=int, envvar="PYRULA_SHARD_COUNT", show_envvar=True,
            default=64, show_default=True, help="Recorded with a workflow name at its first use.",
        ),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def choose_store(store: str | None, namespace: str, shard_count: int, *, title: str) -> StoreChoice:
    """Put the three options together and hide a password; `title` replaces the process title."""
    if store and _came_from_the_command_line() and _holds_a_password(store):
        _hide_arguments(title)
        click.secho(
            "a password in --store was readable in the process list for a moment; "
            "set PYRULA_STORE_URL instead",
            fg="yellow",
            err=True,
        )
    return StoreChoice(url=store or None, namespace=namespace, shard_count=shard_count)


def resolve_store_url(choice: StoreChoice) -> str:
    """The URL to use. Raises `ConfigurationError` `no_store` when nothing says which."""
    url = choice.url or _embedded_url()
    if url is None:
        raise ConfigurationError(
            "expected a store, found neither --store nor PYRULA_STORE_URL nor a supervisor running "
            "in this folder; name one, or start pyrula-supervisor here",
            code="no_store",
        )
    return url


@asynccontextmanager
async def opened(choice: StoreChoice) -> AsyncGenerator[Store]:
    """The chosen store, connected; closed on the way out. Raises `StoreUnavailable` and others."""
    from pyrula.workflows.opening import open_store

    store = open_store(
        resolve_store_url(choice), namespace=choice.namespace, shard_count=choice.shard_count
    )
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _hide_arguments(title: str) -> None:
    """Overwrite what `ps` and /proc/<pid>/cmdline show of this process."""
    from setproctitle import setproctitle

    setproctitle(title)


def _came_from_the_command_line() -> bool:
    context = click.get_current_context()
    return context.get_parameter_source("store") is click.core.ParameterSource.COMMANDLINE


def _holds_a_password(url: str) -> bool:
    # Deliberately cruder than the URL grammar: one that can't be parsed may hold a password too.
    return "@" in url


def _embedded_url() -> str | None:
    """The server that a supervisor keeps under ./.pyrula, if it answers."""
    from pyrula.supervisor.embedded import running_url

    return running_url(Path(".pyrula"))
