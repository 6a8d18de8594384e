"""A workflow whose steps tell a file outside the system when they start: run, pid, time."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from pyrula.workflows import workflow

STEP_S = 0.2


def tell(run_id: str, step: int) -> None:
    line = {"run": run_id, "step": step, "pid": os.getpid(), "at": time.monotonic()}
    with Path(os.environ["LEDGER"]).open("ab", buffering=0) as ledger:
        ledger.write(json.dumps(line).encode() + b"\n")


async def work(run_id: str, step: int) -> Any:
    tell(run_id, step)
    loop = asyncio.get_running_loop()
    answered = loop.create_future()  # as from a service that takes its time
    loop.call_later(STEP_S, answered.set_result, step)
    return await answered


@workflow(name="steady")
async def steady(ctx: Any, steps: int) -> int:
    """So many steps of 0.2 s, one after the other."""
    total = 0
    for number in range(steps):
        total += await ctx.step(f"work-{number}", work, ctx.run_id, number)
    return total
