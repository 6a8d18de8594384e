"""The workflow that kills and soak run: steps of every form, each written down in the ledger."""

from __future__ import annotations

import asyncio
import time
from zlib import crc32

from loadtest.ledger import Ledger
from pyrula.workflows import Context, workflow

NAME = "ledgered"
ledger = Ledger()


async def effect(run: str, step: str) -> str:
    """An async step of 0.05 to 0.2 s; returns its execution."""
    execution = ledger.begin(run, step)
    await asyncio.sleep(seconds(run, step))
    ledger.end(run, step, execution)
    return execution


def pooled_effect(run: str, step: str) -> str:
    """The same in the pool's threads."""
    execution = ledger.begin(run, step)
    time.sleep(seconds(run, step))
    ledger.end(run, step, execution)
    return execution


def seconds(run: str, step: str) -> float:
    """How long the step takes: 0.05 to 0.2, always the same for this run and step."""
    return 0.05 + 0.15 * (crc32(f"{run}/{step}".encode()) % 1_000) / 1_000


@workflow(name=NAME)
async def ledgered(ctx: Context, nap: float = 0.0) -> list[str]:
    """Seven steps; with `nap` (seconds) it parks on the way."""
    run = ctx.run_id
    done: list[str] = [await ctx.step(name, effect, run, name) for name in ("first", "second")]
    done.append(await ctx.step("pooled", pooled_effect, run, "pooled"))
    if nap:
        await ctx.sleep(nap)
    left = ctx.step("left", effect, run, "left")
    right = ctx.step("right", effect, run, "right")
    done += await ctx.gather(left, right)
    done.append(await ctx.step("pooled again", pooled_effect, run, "pooled again"))
    done.append(await ctx.step("last", effect, run, "last"))
    return done
