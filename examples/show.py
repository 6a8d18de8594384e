"""The demonstration: four workers index the standard library, one of them is killed on the way.

Owns the order of events and what is shown. Exits 1 if a claim doesn't hold, with the claim.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sysconfig
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.pool import Pool, running_pool
from examples.proof import Journal, Kill, Proof, prove, read_ledger
from pyrula.workflows import PyrulaError, RunHandle, ValkeyStore, WorkflowClient

PROCS = 4
IN_FLIGHT = 8
LONGEST_S = 120.0
RECOVERY_BOUND_S = 1.0
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


def main() -> int:
    """Run the demonstration in a temporary folder and return the exit status."""
    console = Console()
    try:
        story, proof = _perform(console)
    except (RuntimeError, PyrulaError, TimeoutError) as error:
        console.print(
            f"The demonstration could not be finished: {error}", style="red", markup=False
        )
        return 1
    console.print(_table(story, proof))
    failed = _failed_claims(story, proof)
    for claim in failed:
        console.print(f"✗ {claim}", style="red", markup=False)
    if not failed:
        console.print("✓ Every step that was done ran exactly once.", style="green")
    return 1 if failed else 0


def _perform(console: Console) -> tuple[Story, Proof]:
    with tempfile.TemporaryDirectory(prefix="pyrula-demo-") as name:
        folder = Path(name)
        with running_pool(folder, procs=PROCS, in_flight=IN_FLIGHT) as pool:
            console.print(f"Starting {PROCS} workers and their own server in {folder} …")
            pool.wait_until_ready(PROCS)
            return asyncio.run(_tell(pool, console))


def modules() -> list[Path]:
    """The modules of this interpreter's standard library that are worth a run."""
    root = Path(sysconfig.get_paths()["stdlib"])
    return [
        path
        for path in sorted(root.rglob("*.py"))
        if not NOT_INDEXED & set(path.relative_to(root).parts) and 200 < path.stat().st_size < 4e5
    ]


async def _tell(pool: Pool, console: Console) -> tuple[Story, Proof]:
    store = ValkeyStore(pool.url)
    client = WorkflowClient(store)
    paths = modules()
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
    kill = Kill(at=time.monotonic(), pid=pid)
    os.kill(pid, signal.SIGKILL)
    return kill


def _restarts(pool: Pool) -> int:
    status = pool.status()
    return sum(child["restarts"] for child in status["children"]) if status else 0


def _failed_claims(story: Story, proof: Proof) -> list[str]:
    failed = list(proof.violations)
    if story.report.get("modules") != story.modules:
        found = story.report.get("modules")
        failed.append(f"expected one row for each of {story.modules} modules, found {found}")
    if story.restarts < 1:
        failed.append("expected the killed worker to be restarted, found no restart")
    if proof.recovery_s is None:
        failed.append("expected runs to go on in another process, found none that had to")
    elif proof.recovery_s > RECOVERY_BOUND_S:
        failed.append(
            f"expected the next step elsewhere within {RECOVERY_BOUND_S:g} s of the kill, found "
            f"{proof.recovery_s:.2f} s"
        )
    return failed


def _table(story: Story, proof: Proof) -> Table:
    table = Table(title="The standard library, indexed", show_header=False, title_justify="left")
    recovery = "–" if proof.recovery_s is None else f"{proof.recovery_s * 1000:.0f} ms"
    rows = {
        "runs": f"{story.modules + 1:,}",
        "steps journaled as done": f"{proof.steps:,}",
        "step bodies begun": f"{proof.begins:,}",
        "begun again (killed in the middle)": f"{proof.in_doubt:,}",
        "worker restarts": f"{story.restarts}",
        "runs that moved to another process": f"{proof.moved}",
        "kill → last of them at its next step": recovery,
        "lines of code": f"{story.report.get('lines', 0):,}",
        "functions / classes": (
            f"{story.report.get('functions', 0):,} / {story.report.get('classes', 0):,}"
        ),
        "time": f"{story.took_s:.1f} s",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table
