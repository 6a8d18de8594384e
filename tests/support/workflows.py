"""Example workflows for tests with worker processes; every effect leaves a line in a ledger.

The ledger is a file that is only appended to, one write a line, so that it tells what really
happened, whoever was killed meanwhile. A line is `<run id> <step>`.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Any

from pyrula.workflows import workflow
from pyrula.workflows.engine.context import Context

STEPS = 5


def note(ledger: str, run_id: str, step: str) -> str:
    """One effect."""
    handle = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, f"{run_id} {step}\n".encode())
    finally:
        os.close(handle)
    return step


def there(path: str) -> bool:
    """Whether somebody has made that file."""
    return Path(path).exists()


def effects(ledger: Path) -> Counter[tuple[str, str]]:
    """How often each step of each run had its effect."""
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return Counter((run_id, step) for run_id, step in (line.split() for line in lines))


@workflow
async def ledgered(ctx: Context, ledger: str, pause: float = 0.0) -> list[Any]:
    """Five steps, one in a thread, with a short sleep in the middle."""

    async def effect(step: str) -> str:
        note(ledger, ctx.run_id, step)
        await asyncio.sleep(pause)
        return step

    done = [await ctx.step(f"s{k}", effect, f"s{k}") for k in range(STEPS // 2)]
    await ctx.sleep(0.05)
    done.append(await ctx.step("thread", note, ledger, ctx.run_id, "thread"))
    rest = range(STEPS // 2 + 1, STEPS)
    return done + [await ctx.step(f"s{k}", effect, f"s{k}") for k in rest]


@workflow
async def exits_once(ctx: Context, ledger: str) -> Any:
    """Its step ends the process in its first tick, the first time."""

    async def leave() -> str:
        if not there(ledger):
            note(ledger, ctx.run_id, "leave")
            os._exit(1)
        return note(ledger, ctx.run_id, "leave")

    return await ctx.step("leave", leave)


@workflow
async def held(ctx: Context, ledger: str, until: str) -> Any:
    """A step that lasts until a file appears, then another."""

    async def wait() -> str:
        note(ledger, ctx.run_id, "wait")
        while not there(until):  # noqa: ASYNC110  told by another process
            await asyncio.sleep(0.01)
        return "waited"

    await ctx.step("wait", wait)
    return await ctx.step("after", note, ledger, ctx.run_id, "after")


@workflow
async def hangs_in_a_thread(ctx: Context, ledger: str, until: str) -> None:
    """A sync step that lasts until a file appears."""

    def hang() -> None:
        note(ledger, ctx.run_id, "hang")
        while not there(until):
            os.sched_yield()

    await ctx.step("hang", hang)


@workflow
async def never_unwinds(ctx: Context, ledger: str) -> None:
    """A body that swallows every cancel."""
    note(ledger, ctx.run_id, "begun")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            note(ledger, ctx.run_id, "swallowed")
