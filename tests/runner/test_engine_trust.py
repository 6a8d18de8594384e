"""An attempt acts only while it may trust its lock."""

from __future__ import annotations

from pyrula.workflows.engine.context import Context
from tests.support.attempts import Run


async def echo() -> None:
    """A step."""


async def test_no_step_begins_once_the_lock_may_have_lapsed() -> None:
    async def stopped_for_long() -> None:
        run.trusted = False  # as if the process had been stopped while the step's body ran

    async def body(ctx: Context) -> None:
        await ctx.step("first", stopped_for_long)
        await ctx.step("second", echo)

    run = Run(body)
    assert (await run.attempt()).kind == "stood_down"
    assert run.kinds == ["run:init", "step:pending", "step:done"]
