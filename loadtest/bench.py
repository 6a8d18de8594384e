"""`python -m loadtest.bench`: the benchmarks as a table, and as JSON with `--json`.

Owns which workloads there are, how often each is repeated, and the shape of the JSON. Each figure
is the median of its repetitions; the table shows the least and the most beside it. A workload that
a later release brings is null.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median
from typing import Any

import click
import uvloop
from rich.console import Console
from rich.table import Table

from loadtest import floor, latency, memory, throughput
from loadtest.stage import server_info
from tests.support.valkey import ValkeyServer

BUILT = ("W1", "W2", "W6")
LATER: dict[str, tuple[str, ...]] = {
    "W3": ("p50_s", "p99_s"),
    "W4": ("p50_ms", "p99_ms"),
    "W5": ("idle_median_ms", "block_median_ms", "regex_median_ms"),
    "W7": ("backlog", "tenants", "journal", "timers"),
    "W8": ("rebalance_intervals", "reclaim_s", "moves", "minimum"),
}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured quantity with all its repetitions."""

    workload: str
    name: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """What is quoted."""
        return median(self.values)


async def measure(workloads: tuple[str, ...], procs: tuple[int, ...], repeat: int) -> list[Figure]:
    """Run the workloads, one after the other."""
    figures: list[Figure] = []
    if "W1" in workloads:
        figures += await _w1(procs, repeat)
    if "W2" in workloads:
        figures += await _w2(repeat)
    if "W6" in workloads:
        figures += await _w6(repeat)
    return figures


async def _w1(procs: tuple[int, ...], repeat: int) -> list[Figure]:
    figures = [
        await _figure("W1", "floor: appends alone", "steps/s", floor.steps_per_second, repeat)
    ]
    for number in procs:

        async def steps(number: int = number) -> float:
            return 10 * await throughput.runs_per_second("bench_ten", number)

        async def runs(number: int = number) -> float:
            return await throughput.runs_per_second("bench_one", number)

        figures.append(await _figure("W1", f"steps_per_s/{number}", "steps/s", steps, repeat))
        figures.append(await _figure("W1", f"runs_per_s/{number}", "runs/s", runs, repeat))
    return figures


async def _w2(repeat: int) -> list[Figure]:
    pairs = [await latency.latencies_ms() for _ in range(repeat)]
    p50, p99 = zip(*pairs, strict=True)
    return [
        Figure(workload="W2", name="p50_ms", unit="ms", values=p50),
        Figure(workload="W2", name="p99_ms", unit="ms", values=p99),
    ]


async def _w6(repeat: int) -> list[Figure]:
    idle = await _figure("W6", "idle_pss_mib", "MiB", memory.idle_pss_mib, repeat)
    pairs = [await memory.bytes_per_parked() for _ in range(repeat)]
    worker, server = zip(*pairs, strict=True)
    return [
        idle,
        Figure(workload="W6", name="worker_bytes_per_parked", unit="B", values=worker),
        Figure(workload="W6", name="server_bytes_per_parked", unit="B", values=server),
    ]


async def _figure(
    workload: str, name: str, unit: str, once: Callable[[], Awaitable[float]], repeat: int
) -> Figure:
    values = tuple([await once() for _ in range(repeat)])
    return Figure(workload=workload, name=name, unit=unit, values=values)


def document(figures: list[Figure]) -> dict[str, Any]:
    """The figures in the shape that scripts rely on."""
    found = {f"{figure.workload}/{figure.name}": round(figure.median, 3) for figure in figures}

    def by_procs(name: str) -> dict[str, float | None]:
        return {number: found.get(f"W1/{name}/{number}") for number in ("1", "2")}

    idle = ("idle_pss_mib", "preload_pss_mib", "worker_bytes_per_parked", "server_bytes_per_parked")
    measured: dict[str, Any] = {
        "W1": {"steps_per_s": by_procs("steps_per_s"), "runs_per_s": by_procs("runs_per_s")},
        "W2": {name: found.get(f"W2/{name}") for name in ("p50_ms", "p99_ms")},
        "W6": {name: found.get(f"W6/{name}") for name in idle},
    }
    nulls = {workload: dict.fromkeys(names) for workload, names in LATER.items()}
    workloads = dict(sorted({**measured, **nulls}.items()))
    return workloads | {"machine": machine(), "versions": versions()}


def machine() -> dict[str, Any]:
    """What it ran on."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "arch": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "load_1m": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """What was measured, and on what."""
    with ValkeyServer() as server:
        fields = server_info(server, "server")
    named = ("pyrula", "uvloop", "hiredis", "msgspec")
    return {
        "python": platform.python_version(),
        "valkey": fields.get("valkey_version", fields.get("redis_version", "")),
        **{name: version(name) for name in named},
    }


def show(figures: list[Figure], console: Console) -> None:
    """The table for people."""
    table = Table(title="medians, with the least and the most of all repetitions")
    for column in ("workload", "figure", "unit"):
        table.add_column(column)
    for column in ("median", "min", "max", "of the floor"):
        table.add_column(column, justify="right")
    lowest = next((f.median for f in figures if f.name.startswith("floor")), None)
    for figure in figures:
        share = f"{figure.median / lowest:.0%}" if lowest and figure.unit == "steps/s" else ""
        row = (figure.median, min(figure.values), max(figure.values))
        numbers = [f"{value:,.0f}" if value >= 100 else f"{value:,.2f}" for value in row]
        table.add_row(figure.workload, figure.name, figure.unit, *numbers, share)
    console.print(table)


def _words(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
    words = tuple(text.split(","))
    if unknown := [word for word in words if word not in BUILT]:
        raise click.BadParameter(f"expected some of {','.join(BUILT)}, found {','.join(unknown)}")
    return words


def _numbers(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise click.BadParameter(f"expected numbers of processes such as 1,2, found {text!r}")
    return tuple(map(int, words))


@click.command()
@click.option("--only", default=",".join(BUILT), callback=_words, help="Workloads, e.g. W1,W2.")
@click.option("--procs", default="1,2", callback=_numbers, help="W1: how many worker processes.")
@click.option("--repeat", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the table.")
def main(*, only: tuple[str, ...], procs: tuple[int, ...], repeat: int, as_json: bool) -> None:
    """Measure; starts its own servers and workers."""
    figures = uvloop.run(measure(only, procs, repeat))
    if not as_json:
        show(figures, Console(width=None if sys.stdout.isatty() else 120))
    print(json.dumps(document(figures)))


if __name__ == "__main__":
    main()
