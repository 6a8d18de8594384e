"""Parallel legs, and who may use the context at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyrula.workflows.engine.context import Context
from pyrula.workflows.engine.failures import RemoteError
from pyrula.workflows.stores.errors import TokenRefused
from pyrula.workflows.stores.events import StepPending
from tests.support.attempts import Body, Run, completed, failed
from tests.support.until import eventually


async def echo(value: Any = None) -> Any:
    return value


async def test_results_come_by_position() -> None:
    first_may_end = asyncio.Event()

    async def slow() -> str:
        await first_may_end.wait()
        return "slow"

    async def quick() -> str:
        first_may_end.set()
        return "quick"

    async def body(ctx: Context) -> list[str]:
        return await ctx.gather(ctx.step("a", slow), ctx.step("b", quick))

    assert await completed(body) == ["slow", "quick"]


async def test_legs_may_be_nested_empty_and_any_awaitable() -> None:
    async def plain() -> str:
        return "plain"

    async def leg(ctx: Context) -> list[Any]:
        return await ctx.gather(ctx.step("deep", echo, 1), ctx.gather(), plain())

    async def body(ctx: Context) -> list[Any]:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        future.set_result("future")
        return await ctx.gather(leg(ctx), future, ctx.step("flat", echo, 2))

    run = Run(body)
    await run.attempt()
    assert run.result() == [[1, [], "plain"], "future", 2]
    paths = [event.p for event in run.journal if isinstance(event, StepPending)]
    assert sorted(paths) == ["0.0.0.0.0", "0.2.0"]


async def test_all_legs_end_before_the_first_failure_by_position_is_raised() -> None:
    ended: list[str] = []
    second_failed = asyncio.Event()

    async def fails_late() -> None:
        await second_failed.wait()
        raise ValueError("first by position")

    async def fails_early() -> None:
        second_failed.set()
        raise ValueError("first by time")

    async def leg(ctx: Context) -> None:
        await second_failed.wait()
        await ctx.step("c", echo)
        ended.append("c")

    async def body(ctx: Context) -> str:
        try:
            await ctx.gather(ctx.step("a", fails_late), ctx.step("b", fails_early), leg(ctx))
        except RemoteError as error:
            ended.append(error.message)
        return str(await ctx.step("after", echo, "went on"))

    run = Run(body)
    await run.attempt()
    assert (run.result(), ended) == ("went on", ["c", "first by position"])
    again = run.again(upto=-1)
    ended.clear()
    await again.attempt()
    assert (again.result(), ended) == ("went on", ["c", "first by position"])


async def test_a_leg_cannot_take_the_process_down() -> None:
    async def exits() -> None:
        raise SystemExit(1)

    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    async def with_exit(ctx: Context) -> None:
        await ctx.gather(exits(), ctx.step("a", echo))

    async def with_cancel(ctx: Context) -> None:
        await ctx.gather(cancels_itself(), ctx.step("a", echo))

    assert (await failed(with_exit)).error_type == "RuntimeError"
    assert (await failed(with_cancel)).error_type == "CancelledError"


@pytest.mark.parametrize("wrong", [5, None, echo, [1], "step"])
async def test_what_cannot_be_awaited_is_no_leg(wrong: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.gather(ctx.step("a", echo), wrong)

    error = await failed(body)
    assert error.code == "invalid_leg"
    assert "position 1" in error.message


async def test_a_leg_does_not_wait() -> None:
    async def body(ctx: Context) -> None:
        await ctx.gather(ctx.sleep(1), ctx.step("a", echo))

    assert (await failed(body)).code == "wait_in_leg"


async def test_a_thousand_legs_are_one_gather() -> None:
    async def body(ctx: Context) -> int:
        return sum(await ctx.gather(*[ctx.step("n", echo, k) for k in range(1_000)]))

    assert await completed(body) == sum(range(1_000))


# Who may use the context


async def from_a_task(ctx: Context) -> Any:
    return await asyncio.create_task(ctx.step("a", echo))


async def from_asyncio_gather(ctx: Context) -> Any:
    return await asyncio.gather(ctx.step("a", echo))


async def random_from_a_task(ctx: Context) -> Any:
    async def draw() -> float:
        return ctx.random()

    return await asyncio.create_task(draw())


async def now_from_a_task(ctx: Context) -> Any:
    async def look() -> str:
        return ctx.now().isoformat()

    return await asyncio.create_task(look())


async def uuid_from_a_thread(ctx: Context) -> Any:
    return await asyncio.to_thread(lambda: str(ctx.uuid()))


async def from_a_task_of_a_leg(ctx: Context) -> Any:
    async def leg() -> Any:
        return await asyncio.create_task(ctx.gather())

    return await ctx.gather(leg())


@pytest.mark.parametrize(
    "body",
    [
        *(from_a_task, from_asyncio_gather, random_from_a_task, now_from_a_task),
        *(uuid_from_a_thread, from_a_task_of_a_leg),
    ],
)
async def test_a_task_of_the_bodys_own_may_not_use_the_context(
    body: Body,
) -> None:
    assert (await failed(body)).code == "context_outside_leg"


@pytest.mark.parametrize("call", ["step", "gather", "random", "uuid", "sleep"])
async def test_a_step_may_not_use_the_context(call: str) -> None:
    async def body(ctx: Context) -> None:
        async def inner() -> None:
            if call == "step":
                await ctx.step("inner", echo)
            elif call == "sleep":
                await ctx.sleep(1)
            elif call == "gather":
                await ctx.gather()
            else:
                getattr(ctx, call)()

        await ctx.step("outer", inner)

    run = Run(body)
    await run.attempt()
    assert run.last().code == "context_in_step"
    assert run.kinds == ["run:init", "step:pending", "step:error", "run:error"]


async def test_a_step_may_look_at_the_time_and_the_run() -> None:
    async def body(ctx: Context) -> Any:
        async def inner() -> list[str]:
            return [ctx.run_id, ctx.workflow, ctx.now().isoformat()]

        return await ctx.step("outer", inner)

    assert (await completed(body))[:2] == ["run-1", "tested"]


# Several legs on one journal


async def test_an_append_behind_another_legs_carries_only_its_own() -> None:
    async def body(ctx: Context) -> None:
        await ctx.gather(ctx.step("a", echo), ctx.step("b", echo))

    run = Run(body, gate=asyncio.Event())
    attempt = asyncio.create_task(run.attempt())
    await eventually(lambda: run.asked.count("append") == 2)
    assert run.kinds == ["run:init", *["step:pending", "step:done"] * 2]
    assert run.gate is not None
    run.gate.set()
    await attempt
    assert run.kinds[-1] == "run:complete"


async def test_every_leg_of_a_lost_run_stops_at_its_next_call() -> None:
    calls: list[int] = []

    async def lose() -> None:
        run.refusal = TokenRefused("somebody else's")

    async def leg(ctx: Context, k: int) -> None:
        for _ in range(3):
            await ctx.step("s", lose)
            calls.append(k)

    async def body(ctx: Context) -> None:
        await ctx.gather(*[leg(ctx, k) for k in range(4)])

    run = Run(body)
    assert (await run.attempt()).kind == "lost"
    assert calls == []
