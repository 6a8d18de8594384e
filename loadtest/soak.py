"""`python -m loadtest.soak`: random faults under load, then quiet, then the checker.

Owns the two phases: load and faults by seed for a time; then everything is let go on, nothing more
is submitted, and every accepted run must end within a minute. Prints the faults by kind, the runs
and the verdict; a seed that fails prints the one command that runs it again. Exits 1 if it fails.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import uvloop
from rich.console import Console
from rich.table import Table

from loadtest import ledger, report
from loadtest.checker import Violation, check
from loadtest.faults import SKIPPED, Injector, plan
from loadtest.load import Load
from loadtest.supervised import Supervised
from pyrula.workflows.stores.valkey.store import ValkeyStore
from tests.support.valkey import ValkeyServer

QUIET_S = 60.0
LANES = 8  # runs at a time for each worker process
# A killed supervisor leaves nobody to settle deaths: the scan has to find them, soon.
OPTIONS = {"lock_ttl": "2", "orphan_scan_interval": "2"}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a soak did and what came of it; `quiet_s` is how long the runs took to end."""

    seed: int
    seconds: float
    faults: dict[str, int]
    runs: int
    ended: dict[str, int]
    steps: int
    in_doubt_steps_rerun: int
    stuck: int
    quiet_s: float
    violations: dict[str, int]

    @property
    def hold(self) -> bool:
        """Whether nothing was lost, doubled, re-run or stuck."""
        whole = not self.stuck and self.ended.keys() <= {"completed"}
        return whole and report.holds(self.violations)


async def soak(
    seconds: float, procs: int, seed: int, kept: Path
) -> tuple[Outcome, list[Violation]]:
    """Load and faults for so many seconds, then quiet."""
    with ValkeyServer(aof="always") as server:
        pool = Supervised(
            folder=server.folder,
            store_url=server.url,
            procs=procs,
            options=OPTIONS | {"max_concurrent_runs": str(LANES * procs // 2)},
        )
        injector = Injector(server=server, pool=pool)
        store = ValkeyStore(server.url)
        load = Load(store, lanes=LANES * procs, naps=True, rng=random.Random(seed))
        try:
            await asyncio.to_thread(pool.start)
            running = asyncio.create_task(load.run(), name="load")
            until_s = time.monotonic() + seconds
            await asyncio.to_thread(injector.run, plan(seed, procs), until_s)
            healed = time.monotonic()
            stuck = await load.stop(running, QUIET_S)
            quiet_s = time.monotonic() - healed
            evidence = await load.evidence(pool.ledger, injector.resumed)
        finally:
            pool.kill()
            await store.close()
        found = check(evidence)
        outcome = Outcome(
            seed=seed,
            seconds=seconds,
            faults=dict(injector.done),
            runs=len(load.accepted),
            ended=dict(load.ends),
            steps=sum(entry.kind == "start" for entry in evidence.ledger),
            in_doubt_steps_rerun=ledger.repeated(evidence.ledger),
            stuck=len(stuck),
            quiet_s=round(quiet_s, 1),
            violations=report.counts(found),
        )
        if not outcome.hold:
            report.keep(evidence, found, [pool.log, pool.ledger], kept)
    return outcome, found


def show(outcome: Outcome, found: Sequence[Violation], console: Console) -> None:
    """The tables for people."""
    table = Table("fault", "times", title=f"faults of seed {outcome.seed}")
    for kind, times in sorted(outcome.faults.items()):
        table.add_row(kind, str(times))
    table.add_section()
    table.add_row("all", str(sum(outcome.faults.values()) - outcome.faults.get(SKIPPED, 0)))
    console.print(table)
    result = Table("figure", "value", title=f"after {outcome.seconds:.0f} s")
    rows = {k: v for k, v in asdict(outcome).items() if k not in {"seed", "faults", "violations"}}
    for name, value in (rows | outcome.violations).items():
        result.add_row(name.replace("_", " "), str(value))
    console.print(result)
    report.show(found, outcome.hold, console)


@click.command()
@click.option("--minutes", type=click.FloatRange(0.05, 1_440), default=3.0, show_default=True)
@click.option("--procs", type=click.IntRange(2, 64), default=4, show_default=True)
@click.option("--seed", type=int, default=None, help="The plan of faults; random if unset.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the tables.")
def main(*, minutes: float, procs: int, seed: int | None, as_json: bool) -> None:
    """Do random faults under load; starts its own server and supervisors."""
    chosen = secrets.randbelow(1 << 31) if seed is None else seed
    kept = Path("build") / f"soak-{chosen}"
    outcome, found = uvloop.run(soak(minutes * 60, procs, chosen, kept))
    if as_json:
        print(json.dumps(asdict(outcome) | {"holds": outcome.hold}))
    else:
        show(outcome, found, Console(width=None if sys.stdout.isatty() else 120))
    if not outcome.hold:
        again = f"python -m loadtest.soak --minutes {minutes:g} --procs {procs} --seed {chosen}"
        print(f"evidence in {kept}; once more: {again}", file=sys.stderr)
    raise SystemExit(0 if outcome.hold else 1)


if __name__ == "__main__":
    main()
