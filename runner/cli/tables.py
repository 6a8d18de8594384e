"""What people see: tables on a terminal, plain text in a pipe.

Owns the layout. Everything that comes from the store passes `plain` first, so that a result or an
owner can't drive the reader's terminal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pyrula.workflows.cli.documents import Document
from pyrula.workflows.cli.failing import plain

_COLOURS = {
    "completed": "green",
    "failed": "red",
    "terminated": "red",
    "cancelled": "yellow",
    "running": "cyan",
}
_WIDE = 200  # a pipe has no width; nothing should be cut for its sake


def show_runs(runs: Iterable[Document]) -> None:
    """A table of runs, newest first."""
    columns = ("run id", "workflow", "status", "owner", "created", "updated", "events")
    rows = [
        (
            _id(run["run_id"]),
            _cell(run["workflow"]),
            _status(run["status"]),
            _cell(run["owner"]),
            _cell(_when(run["created_at"])),
            _cell(_when(run["updated_at"])),
            _cell(run["events"]),
        )
        for run in runs
    ]
    _show_table(columns, rows)


def show_run(run: Document) -> None:
    """One run, a field a line."""
    rows = [
        (Text(name.replace("_", " ")), _status(value) if name == "status" else _cell(value))
        for name, value in run.items()
        if value is not None
    ]
    _show_table(None, rows)


def show_events(events: Iterable[Document]) -> None:
    """A table of journal events."""
    own = {"seq", "event", "at"}
    rows = [
        (
            _cell(event["seq"]),
            _cell(event["at"]),
            _cell(event["event"]),
            _cell({name: value for name, value in event.items() if name not in own}),
        )
        for event in events
    ]
    _show_table(("seq", "at", "event", "fields"), rows)


def _show_table(columns: tuple[str, ...] | None, rows: Sequence[tuple[Text, ...]]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    table = Table(box=box.SIMPLE_HEAD, show_header=columns is not None, pad_edge=False)
    for column in columns or ("", ""):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _cell(value: Any) -> Text:
    if value is None:
        return Text("–", style="dim")
    if isinstance(value, str):
        return Text(plain(value))
    # JSON escapes control characters itself.
    return Text(json.dumps(value))


def _id(run_id: str) -> Text:
    return Text(plain(run_id), style="bold")


def _status(status: str) -> Text:
    return Text(status, style=_COLOURS.get(status, ""))


def _when(at: str) -> str:
    return at[:19].replace("T", " ")
