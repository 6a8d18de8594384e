"""`python -m loadtest.kills`: kill -9 of workers under load, and how fast their runs go on.

Owns the kills and the figures: for every run that was in flight in a killed worker the time to its
next step elsewhere, and what the checker says of all journals afterwards. Exits 1 if a claim fails.

A supervisor that sees more than 2N workers die in a minute takes it for a crash loop and waits, as
it should. So after 2N kills it is drained and a new one goes on with the same store.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click
import uvloop
from rich.console import Console
from rich.table import Table

from loadtest import ledger, report
from loadtest.checker import Violation, check
from loadtest.load import Load
from loadtest.recovery import Kill, Recovery, recoveries
from loadtest.supervised import Supervised
from pyrula.workflows.stores.valkey.store import ValkeyStore
from tests.support.until import until
from tests.support.valkey import ValkeyServer

SPACING_S = 0.7
RECOVERED_WITHIN_S = 1.0
QUIET_S = 60.0
LANES = 8  # runs at a time for each worker process
LAST_STEP = "last"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was measured; times in seconds, None if no run was in flight."""

    seed: int
    kills: int
    kills_with_runs: int
    runs: int
    ended: dict[str, int]
    stuck: int
    in_flight: int
    not_resumed: int
    in_doubt_steps_rerun: int
    p50_s: float | None
    p99_s: float | None
    max_s: float | None
    violations: dict[str, int]

    @property
    def hold(self) -> bool:
        """Whether every claim does."""
        fast = self.p99_s is not None and self.p99_s < RECOVERED_WITHIN_S
        whole = not self.stuck and not self.not_resumed and self.ended.keys() <= {"completed"}
        return fast and whole and report.holds(self.violations)


async def measure(n: int, procs: int, seed: int, kept: Path) -> tuple[Figures, list[Violation]]:
    """Kill `n` workers of a pool of `procs` under load."""
    rng = random.Random(seed)
    with ValkeyServer(aof="everysec") as server:
        # Small enough that no worker takes everything, large enough that any two hold all of it.
        most = {"max_concurrent_runs": str(LANES * procs // 2)}
        pool = Supervised(folder=server.folder, store_url=server.url, procs=procs, options=most)
        store = ValkeyStore(server.url)
        load = Load(store, lanes=LANES * procs, naps=False, rng=random.Random(seed))
        try:
            await asyncio.to_thread(pool.start)
            running = asyncio.create_task(load.run(), name="load")
            kills = await asyncio.to_thread(_kill_workers, pool, n, rng)
            stuck = await load.stop(running, QUIET_S)
            evidence = await load.evidence(pool.ledger, [])
        finally:
            pool.kill()
            await store.close()
        found = check(evidence)
        seen = recoveries(evidence.ledger, kills, LAST_STEP)
        again = ledger.repeated(evidence.ledger)
        figures = _figures(seed, len(kills), load, stuck, seen, again, found)
        if not figures.hold:
            report.keep(evidence, found, [pool.log, pool.ledger], kept)
    return figures, found


def _kill_workers(pool: Supervised, n: int, rng: random.Random) -> list[Kill]:
    kills: list[Kill] = []
    patience = max(3, 2 * pool.procs)
    for number in range(n):
        if number and number % patience == 0:
            time.sleep(RECOVERED_WITHIN_S)  # what was killed last is to be seen going on
            pool.drain()
            pool.start()
        time.sleep(SPACING_S * rng.uniform(0.5, 1.5))
        # The claim is made for a death with a ready sibling.
        until(lambda: len(pool.ready()) > 1, QUIET_S, "a second ready worker")
        kill = Kill(pid=rng.choice(pool.ready()), at=time.monotonic())
        os.kill(kill.pid, signal.SIGKILL)
        kills.append(kill)
    time.sleep(RECOVERED_WITHIN_S)
    return kills


def _figures(
    seed: int,
    kills: int,
    load: Load,
    stuck: Sequence[str],
    seen: Sequence[Recovery],
    again: int,
    found: Sequence[Violation],
) -> Figures:
    took = sorted(one.seconds for one in seen if one.seconds is not None)
    return Figures(
        seed=seed,
        kills=kills,
        kills_with_runs=len({one.kill for one in seen}),
        runs=len(load.accepted),
        ended=dict(load.ends),
        stuck=len(stuck),
        in_flight=len(seen),
        not_resumed=len(seen) - len(took),
        in_doubt_steps_rerun=again,
        p50_s=round(median(took), 3) if took else None,
        p99_s=round(took[(99 * len(took) - 1) // 100], 3) if took else None,
        max_s=round(took[-1], 3) if took else None,
        violations=report.counts(found),
    )


def show(figures: Figures, found: Sequence[Violation], console: Console) -> None:
    """The table for people."""
    table = Table("figure", "value", title="kill -9 of workers under load")
    rows = {name: value for name, value in asdict(figures).items() if name != "violations"}
    for name, value in (rows | figures.violations).items():
        table.add_row(name.replace("_", " "), str(value))
    console.print(table)
    report.show(found, figures.hold, console)


@click.command()
@click.option("--n", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--procs", type=click.IntRange(2, 64), default=4, show_default=True)
@click.option("--seed", type=int, default=None, help="Which workers are killed; random if unset.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the table.")
def main(*, n: int, procs: int, seed: int | None, as_json: bool) -> None:
    """Kill n workers, one after the other; starts its own server and supervisor."""
    chosen = secrets.randbelow(1 << 31) if seed is None else seed
    kept = Path("build") / f"kills-{chosen}"
    figures, found = uvloop.run(measure(n, procs, chosen, kept))
    if as_json:
        print(json.dumps(asdict(figures) | {"holds": figures.hold}))
    else:
        show(figures, found, Console(width=None if sys.stdout.isatty() else 120))
    if not figures.hold:
        again = f"python -m loadtest.kills --n {n} --procs {procs} --seed {chosen}"
        print(f"evidence in {kept}; once more: {again}", file=sys.stderr)
    raise SystemExit(0 if figures.hold else 1)


if __name__ == "__main__":
    main()
