"""The tree of commands.

Owns the group `pyrula` and its subcommands' registration. Imports nothing that is slow to import.
"""

from __future__ import annotations

import click

from pyrula.workflows.cli.runs import runs
from pyrula.workflows.cli.worker import worker


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def pyrula() -> None:
    """Durable workflows: serve them, submit runs, look into them.

    The store is --store, else PYRULA_STORE_URL, else the embedded server of a supervisor running in
    this folder.
    """


@pyrula.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as version_of

    click.echo(version_of("pyrula"))


pyrula.add_command(runs)
pyrula.add_command(worker)
