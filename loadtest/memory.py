"""W6: what an idle worker weighs, and what a parked run costs worker and server."""

from __future__ import annotations

from pathlib import Path

from loadtest.stage import Stage, server_info, stage, submit_many
from tests.support.until import eventually_async

WARM, PARKED = 1_000, 4_000
MIB = 1 << 20


async def idle_pss_mib() -> float:
    """The proportional set size of one worker with nothing to do."""
    async with stage(procs=1) as on:
        return pss_bytes(on.workers[0].process.pid) / MIB


async def bytes_per_parked() -> tuple[float, float]:
    """What one sleeping run more costs the worker and the server.

    Counted after a first thousand, so that neither pays for pools and tables that grow in jumps.
    """
    async with stage(procs=1) as on:
        await _park(on, WARM)
        worker, server = _weights(on)
        await _park(on, WARM + PARKED)
        heavier_worker, heavier_server = _weights(on)
    return (heavier_worker - worker) / PARKED, (heavier_server - server) / PARKED


async def _park(on: Stage, total: int) -> None:
    await submit_many(on.client, "bench_parked", total - on.tally.total())
    await on.counted(total)

    async def nothing_runs() -> bool:
        running = await on.store.list_runs("bench_parked", status="running", owner=None, limit=1)
        return not running

    await eventually_async(nothing_runs, 10, "all runs parked")


def _weights(on: Stage) -> tuple[int, int]:
    used = server_info(on.server, "memory")["used_memory"]
    return pss_bytes(on.workers[0].process.pid), int(used)


def pss_bytes(pid: int) -> int:
    """The proportional set size: shared pages counted by their share."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1_024
    raise ValueError(f"no Pss in /proc/{pid}/smaps_rollup")
