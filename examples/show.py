"""The demonstration: four workers index the standard library, one of them is killed on the way.

Owns the order of events and what is shown. Exits 1 if a claim doesn't hold, with the claim.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.pool import Pool, running_pool
from examples.proof import Journal, Kill, Proof, prove, read_ledger
from pyrula.workflows import PyrulaError, RunHandle, ValkeyStore, WorkflowClient

PROCS = 4
IN_FLIGHT = 16
LONGEST_S = 120.0
NOT_INDEXED = {"site-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip"}


@dataclass
class Story:
    """What has happened."""

    modules: int
    began: float = field(default_factory=time.monotonic)
    kill: Kill | None = None
    took_s: float = 0.0
    restarts: int = 0
    report: dict[str, int] = field(default_factory=dict)


@click.command()
@click.option("--modules", type=click.IntRange(10), help="Index no more than this.")
@click.option("--recovery-bound", default=1.0, show_default=True, help="Seconds; see the claims.")
def main(*, modules: int | None, recovery_bound: float) -> None:
    """Index the standard library with four workers, and kill one of them on the way."""
    sys.exit(demonstrate(standard_library()[:modules], recovery_bound))


def demonstrate(paths: list[Path], recovery_bound_s: float) -> int:
    """Run the demonstration in a temporary folder and return the exit status."""
    console = Console()
    try:
        story, proof = _perform(paths, console)
    except (RuntimeError, PyrulaError, TimeoutError) as error:
        console.print(
            f"The demonstration could not be finished: {error}", style="red", markup=False
        )
        return 1
    console.print(_table(story, proof))
    failed = _failed_claims(story, proof, recovery_bound_s)
    for claim in failed:
        console.print(f"✗ {claim}", style="red", markup=False)
    if not failed:
        console.print("✓ Every step that was done ran exactly once.", style="green")
    return 1 if failed else 0


def _perform(paths: list[Path], console: Console) -> tuple[Story, Proof]:
    with tempfile.TemporaryDirectory(prefix="pyrula-demo-") as name:
        folder = Path(name)
        with running_pool(folder, procs=PROCS, in_flight=IN_FLIGHT) as pool:
            console.print(f"Starting {PROCS} workers and their own server in {folder} …")
            pool.wait_until_ready(PROCS)
            return asyncio.run(_tell(pool, paths, console))


def standard_library() -> list[Path]:
    """The modules of this interpreter's standard library that are worth a run."""
    root = Path(sysconfig.get_paths()["stdlib"])
    return [
        path
        for path in sorted(root.rglob("*.py"))
        if not NOT_INDEXED & set(path.relative_to(root).parts) and 200 < path.stat().st_size < 4e5
    ]


async def _tell(pool: Pool, paths: list[Path], console: Console) -> tuple[Story, Proof]:
    store = ValkeyStore(pool.url)
    client = WorkflowClient(store)
    story = Story(modules=len(paths))
    try:
        async with asyncio.timeout(LONGEST_S):
            runs = await asyncio.gather(
                *(client.submit("index_module", _params(pool, path)) for path in paths)
            )
            await _follow(pool, runs, story, console)
            report = await client.submit("collect_report", {"folder": str(pool.folder)})
            story.report = await report.result()
            journals: dict[str, Journal] = {r.run_id: await r.events() for r in [*runs, report]}
        story.took_s = time.monotonic() - story.began
        story.restarts = _restarts(pool)
    finally:
        await client.close()
        await store.close()
    assert story.kill is not None
    return story, prove(journals, read_ledger(pool.folder), story.kill)


def _params(pool: Pool, path: Path) -> dict[str, str]:
    return {"path": str(path), "folder": str(pool.folder)}


async def _follow(pool: Pool, runs: list[RunHandle], story: Story, console: Console) -> None:
    """Show the runs as they end, and kill a worker when a third of them have."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("indexing", total=len(runs))
        for ended, result in enumerate(asyncio.as_completed([run.result() for run in runs]), 1):
            await result
            progress.advance(bar)
            if ended == len(runs) // 3:
                story.kill = _kill_a_busy_worker(pool)
                progress.console.print(f"kill -9 {story.kill.pid}: one of {PROCS} workers is gone")


def _kill_a_busy_worker(pool: Pool) -> Kill:
    """SIGKILL the worker that has begun a step last: it is in the middle of something."""
    pid = read_ledger(pool.folder)[-1].pid
    kill = Kill(at=time.monotonic(), store_ms=time.time() * 1_000, pid=pid)
    os.kill(pid, signal.SIGKILL)
    return kill


def _restarts(pool: Pool) -> int:
    status = pool.status()
    return sum(child["restarts"] for child in status["children"]) if status else 0


def _failed_claims(story: Story, proof: Proof, recovery_bound_s: float) -> list[str]:
    failed = list(proof.violations)
    if story.report.get("modules") != story.modules:
        found = story.report.get("modules")
        failed.append(f"expected one row for each of {story.modules} modules, found {found}")
    if story.restarts < 1:
        failed.append("expected the killed worker to be restarted, found no restart")
    if not proof.queued_s or not proof.waits_s:
        failed.append("expected runs to go on in another process, found none that had to")
        return failed
    # The next steps are shown and not judged: all workers are busy, so a run also waits its turn.
    took = proof.queued_s[-1]
    if took > recovery_bound_s:
        failed.append(
            f"expected all runs queued again within {recovery_bound_s:g} s of the kill, "
            f"found {took:.2f} s"
        )
    return failed


def _table(story: Story, proof: Proof) -> Table:
    table = Table(title="The standard library, indexed", show_header=False, title_justify="left")
    queued, waits = (times or [float("nan")] for times in (proof.queued_s, proof.waits_s))
    rows = {
        "runs": f"{story.modules + 1:,}",
        "steps journaled as done": f"{proof.steps:,}",
        "step bodies begun": f"{proof.begins:,}",
        "begun again (killed in the middle)": f"{proof.in_doubt:,}",
        "worker restarts": f"{story.restarts}",
        "runs that lost their process": f"{len(proof.queued_s)}",
        "kill → all of them queued again": f"{queued[-1] * 1000:.0f} ms",
        "kill → next step elsewhere, median / last": (
            f"{median(waits) * 1000:.0f} / {waits[-1] * 1000:.0f} ms"
        ),
        "lines of code": f"{story.report.get('lines', 0):,}",
        "functions / classes": (
            f"{story.report.get('functions', 0):,} / {story.report.get('classes', 0):,}"
        ),
        "time": f"{story.took_s:.1f} s",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table
