"""The workflows that the benchmarks run: as little work of their own as can be."""

from __future__ import annotations

from loadtest.tally import Counter
from pyrula.workflows import Context, workflow

counter = Counter()


async def noop(number: int) -> int:
    """A step without work."""
    return number


@workflow
async def bench_one(ctx: Context) -> int:
    """W1 and W2: a single step."""
    result: int = await ctx.step("noop", noop, 0)
    counter.add()
    return result


@workflow
async def bench_ten(ctx: Context) -> int:
    """W1: ten steps, one after the other."""
    total = 0
    for number in range(10):
        total += await ctx.step("noop", noop, number)
    counter.add()
    return total


@workflow
async def bench_parked(ctx: Context) -> None:
    """W6: parks for longer than any benchmark takes."""
    counter.add()
    await ctx.sleep(86_400)
