"""An index of the standard library: one durable run for each module.

Read the module, parse it (CPU-bound, so in a sync step, which runs in a thread), look at three
sides of it at once, write one row. A last run collects the report. Every step leaves a line in a
ledger just before it does its work, which is how `examples.proof` can tell that none ran twice.

    python -m examples.stdlib_index        # with four worker processes, one of which gets killed
"""

from __future__ import annotations

import ast
import os
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pyrula.workflows import Context, workflow

# CPython (3.11 at least) keeps one recursion counter for all threads that build syntax trees, and
# raises SystemError when they interleave.
one_parser = threading.Lock()


@dataclass(frozen=True)
class Job:
    """What a step needs besides its input: where results go, and whose step it is."""

    folder: str
    run_id: str

    def note(self, step: str) -> None:
        """Add a line to the ledger: when, in which process, whose step."""
        line = f"{time.monotonic():.6f} {os.getpid()} {self.run_id} {step}\n"
        with Path(self.folder, "ledger").open("a") as ledger:
            ledger.write(line)

    def database(self) -> sqlite3.Connection:
        """The table of modules, made if it isn't there."""
        path = Path(self.folder, "index.sqlite")
        database = sqlite3.connect(path, timeout=30, isolation_level=None)
        database.execute(
            "CREATE TABLE IF NOT EXISTS modules (run_id TEXT PRIMARY KEY, path TEXT, "
            "lines INTEGER, functions INTEGER, classes INTEGER, needs INTEGER)"
        )
        return database


@dataclass(frozen=True)
class Shape:
    """What the syntax tree of a module holds."""

    functions: list[str]
    classes: list[str]
    imports: list[str]


@workflow
async def index_module(ctx: Context, path: str, folder: str) -> str:
    """Index one module; the result is a sentence about it."""
    job = Job(folder, ctx.run_id)
    source = await ctx.step("read", read_source, job, path)
    shape = await ctx.step("parse", parse, job, source)
    lines, biggest, needs = await ctx.gather(
        ctx.step("count lines", count_lines, job, source),
        ctx.step("find longest name", longest_name, job, shape),
        ctx.step("find needs", top_level_imports, job, shape),
    )
    row = (path, lines, len(shape.functions), len(shape.classes), len(needs))
    await ctx.step("write row", write_row, job, row)
    return f"{Path(path).stem}: {lines} lines, {len(needs)} imports, longest name {biggest!r}"


@workflow
async def collect_report(ctx: Context, folder: str) -> dict[str, int]:
    """Add up what all runs have written."""
    totals = await ctx.step("add up", add_up, Job(folder, ctx.run_id))
    return {str(name): int(total) for name, total in totals.items()}


def read_source(job: Job, path: str) -> str:
    """The text of a module."""
    job.note("read")
    return Path(path).read_text(encoding="utf-8")


def parse(job: Job, source: str) -> Shape:
    """Walk the syntax tree."""
    job.note("parse")
    with one_parser:
        tree = ast.parse(source)
    functions: list[str] = []
    classes: list[str] = []
    imports: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append(node.name)
        elif isinstance(node, ast.ClassDef):
            classes.append(node.name)
        elif isinstance(node, ast.Import):
            imports.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imports.append(node.module or ".")
    return Shape(functions, classes, imports)


def count_lines(job: Job, source: str) -> int:
    """How many lines say something."""
    job.note("count lines")
    return sum(bool(line.strip()) for line in source.splitlines())


def longest_name(job: Job, shape: Shape) -> str:
    """The longest name that the module defines."""
    job.note("find longest name")
    return max([*shape.functions, *shape.classes], key=len, default="")


def top_level_imports(job: Job, shape: Shape) -> list[str]:
    """The packages that the module needs."""
    job.note("find needs")
    return sorted({name.partition(".")[0] for name in shape.imports})


def write_row(job: Job, row: tuple[str, int, int, int, int]) -> None:
    """One row for each run; writing it again changes nothing."""
    job.note("write row")
    with closing(job.database()) as database:
        database.execute(
            "INSERT INTO modules VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (run_id) DO NOTHING",
            (job.run_id, *row),
        )


def add_up(job: Job) -> dict[str, int]:
    """The totals over all rows."""
    job.note("add up")
    columns = ("modules", "lines", "functions", "classes")
    with closing(job.database()) as database:
        totals = database.execute(
            "SELECT count(*), sum(lines), sum(functions), sum(classes) FROM modules"
        ).fetchone()
    return dict(zip(columns, totals, strict=True))


if __name__ == "__main__":
    from examples.show import main

    main()
