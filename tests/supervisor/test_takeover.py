"""Real workers on a real server: what a death costs the runs of the dead."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import statistics
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pyrula.workflows.client import RunHandle, WorkflowClient
from pyrula.workflows.stores.valkey.store import ValkeyStore
from tests.supervisor.command import Supervisor, is_alive
from tests.support.until import eventually
from tests.support.valkey import ValkeyServer

KILLS = 4
RUNS = 12


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A pool that serves `steady`, and what its steps have told."""

    supervisor: Supervisor
    client: WorkflowClient
    ledger: Path

    def starts(self) -> list[dict[str, Any]]:
        """Every start of a step so far, oldest first."""
        lines = self.ledger.read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def held_by(self, pid: int, steps: int, at: float = math.inf) -> set[str]:
        """The runs whose last step at that time was started by this process, with more to come."""
        so_far = (start for start in self.starts() if start["at"] <= at or start["pid"] == pid)
        last = {start["run"]: start for start in so_far}
        going_on = (start for start in last.values() if start["step"] < steps - 1)
        return {start["run"] for start in going_on if start["pid"] == pid}

    def busiest(self, steps: int) -> int:
        """The child that holds the most runs."""
        return max(self.supervisor.pids(), key=lambda pid: len(self.held_by(pid, steps)))

    async def submit(self, count: int, steps: int) -> list[RunHandle]:
        """Start runs; returns once each has started a step."""
        runs = [await self.client.submit("steady", {"steps": steps}) for _ in range(count)]
        await eventually(lambda: len({start["run"] for start in self.starts()}) >= count, 10)
        return runs


@asynccontextmanager
async def scene(
    folder: Path, server: ValkeyServer, namespace: str, *argv: str
) -> AsyncGenerator[Scene]:
    ledger = folder / "ledger"
    ledger.touch()
    words = ("--workflow", "tests.supervisor.ledgered:steady", "--store", server.url)
    env = {"LEDGER": str(ledger)}
    where = ("--namespace", namespace, "--shard-count", "8")
    store = ValkeyStore(server.url, namespace=namespace, shard_count=8)
    client = WorkflowClient(store)
    with Supervisor(folder, *words, *where, *argv, env=env) as supervisor:
        await asyncio.to_thread(supervisor.wait_ready, int(argv[argv.index("--procs") + 1]))
        await store.open()
        try:
            yield Scene(supervisor=supervisor, client=client, ledger=ledger)
        finally:
            await client.close()
            await store.close()


async def finished(runs: list[RunHandle], steps: int) -> None:
    """All of them end well."""
    results = await asyncio.gather(*(run.result(timeout=20) for run in runs))
    assert results == [sum(range(steps))] * len(runs)


async def recoveries(stage: Scene, pid: int, steps: int) -> list[float]:
    """Kill the child; how long each of its runs waited for its next step elsewhere."""
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: not is_alive(pid))
    orphans = stage.held_by(pid, steps, killed_at)

    def next_starts() -> dict[str, float]:
        found: dict[str, float] = {}
        for start in stage.starts():
            if start["at"] > killed_at and start["pid"] != pid and start["run"] in orphans:
                found.setdefault(start["run"], start["at"] - killed_at)
        return found

    await eventually(lambda: set(next_starts()) == orphans, 10, "each run of the dead goes on")
    return list(next_starts().values())


@pytest.mark.bound(60)
async def test_the_runs_of_a_killed_child_go_on_elsewhere_within_a_second(
    folder: Path, valkey: ValkeyServer, namespace: str
) -> None:
    async with scene(folder, valkey, namespace, "--procs", "3") as stage:
        steps = 40
        runs = await stage.submit(RUNS, steps)
        waits: list[float] = []
        for _ in range(KILLS):
            waits += await recoveries(stage, stage.busiest(steps), steps)
            await eventually(lambda: len(stage.supervisor.ready()) == 3, 10)
        waits.sort()
        p50, worst = statistics.median(waits), waits[-1]
        print(f"takeover: {len(waits)} runs, p50 {p50 * 1000:.0f} ms, max {worst * 1000:.0f} ms")
        assert len(waits) >= KILLS
        assert worst < 1.0
        await finished(runs, steps)
        settled = {event["incarnation"] for event in stage.supervisor.events("death_settled")}
        assert len(settled) == KILLS


@pytest.mark.bound(60)
async def test_with_one_process_its_successor_settles_first_and_goes_on(
    folder: Path, valkey: ValkeyServer, namespace: str
) -> None:
    async with scene(folder, valkey, namespace, "--procs", "1") as stage:
        runs = await stage.submit(4, steps=10)
        (pid,) = stage.supervisor.pids()
        waits = await recoveries(stage, pid, 10)
        print(f"one process: {max(waits) * 1000:.0f} ms from kill to the next step")
        assert max(waits) < 3.0  # of which most is the boot of a Python process
        await finished(runs, 10)
        assert stage.supervisor.events("death_settled")


@pytest.mark.bound(60)
async def test_a_stopped_server_delays_neither_reaping_nor_answers(
    folder: Path, private_valkey: Callable[..., ValkeyServer], namespace: str
) -> None:
    server = private_valkey(aof="everysec")
    async with scene(folder, server, namespace, "--procs", "2") as stage:
        runs = await stage.submit(4, steps=10)
        dead = stage.supervisor.pids()[0]
        server.pause()
        os.kill(dead, signal.SIGKILL)
        await eventually(lambda: not is_alive(dead), 2)
        await eventually(lambda: stage.supervisor.events("worker_exited"), 2)
        began = time.monotonic()
        stage.supervisor.status()
        assert time.monotonic() - began < 1.0
        await eventually(lambda: len(stage.supervisor.pids()) == 2, 5, "a new child is forked")
        server.resume()
        await finished(runs, 10)


@pytest.mark.bound(60)
async def test_no_worker_outlives_a_killed_supervisor(
    folder: Path, valkey: ValkeyServer, namespace: str
) -> None:
    async with scene(folder, valkey, namespace, "--procs", "3") as stage:
        await stage.submit(6, steps=50)
        pids = stage.supervisor.pids()
        stage.supervisor.process.kill()
        await eventually(lambda: not any(map(is_alive, pids)), 1.0, "no child alive after 1 s")


@pytest.mark.bound(60)
async def test_a_drain_gives_its_runs_back_and_the_next_supervisor_finishes_them(
    folder: Path, valkey: ValkeyServer, namespace: str
) -> None:
    grace = ("--procs", "2", "--shutdown-grace", "0.1", "--cancel-timeout", "0.5")
    async with scene(folder, valkey, namespace, *grace) as stage:
        runs = await stage.submit(6, steps=15)
        assert await asyncio.to_thread(stage.supervisor.drained, 10) == 0
        assert not stage.supervisor.events("drain_overdue")
    async with scene(folder, valkey, namespace, "--procs", "2") as stage:
        await finished(runs_of(stage, runs), 15)


def runs_of(stage: Scene, runs: list[RunHandle]) -> list[RunHandle]:
    """The same runs, asked through this scene's client."""
    return [stage.client.handle("steady", run.run_id) for run in runs]
