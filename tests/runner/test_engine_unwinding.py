"""How an attempt ends: parked, cancelled, stood down, lost, or by an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pyrula.workflows.engine.activation import Outcome
from pyrula.workflows.engine.context import Context
from pyrula.workflows.engine.env import Limits, event_cap
from pyrula.workflows.engine.registry import workflow
from pyrula.workflows.engine.retry import Retry
from pyrula.workflows.engine.unwinding import LockLost, StoreLost, Suspended
from pyrula.workflows.stores.base import Flag
from pyrula.workflows.stores.errors import (
    JournalRolledBack,
    PyrulaError,
    RunFailedError,
    StoreEmptied,
    StoreError,
    StoreUnavailable,
    TokenRefused,
    WrongServer,
)
from pyrula.workflows.stores.events import RunInit, StepDone, unpack
from pyrula.workflows.stores.memory.store import MemoryStore
from tests.support.attempts import Run, failed
from tests.support.until import eventually
from tests.support.workers import SHARDS, serving


async def echo(value: Any = None) -> Any:
    return value


class Stage:
    """Where a body waits for ever, and what it saw."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.seen: list[str] = []

    async def stuck(self) -> None:
        self.reached.set()
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            self.seen.append(type(error).__name__)
            raise


async def interrupted(run: Run, stage: Stage, how: str) -> Outcome:
    """Start an attempt, wait until it is stuck, and do what the worker would do."""
    attempt = asyncio.create_task(run.attempt())
    await stage.reached.wait()
    assert run.activation is not None
    if how == "cancel":
        run.activation.notice(Flag.CANCEL)
    else:
        getattr(run.activation, how)()
    return await attempt


ENDINGS = [("cancel", "cancelled"), ("stand_down", "stood_down"), ("lock_lost", "lost")]


async def in_step(ctx: Context, stage: Stage) -> None:
    await ctx.step("stuck", stage.stuck)


async def in_gather(ctx: Context, stage: Stage) -> None:
    await ctx.gather(ctx.step("a", stage.stuck), ctx.step("b", stage.stuck))


async def in_nested_gather(ctx: Context, stage: Stage) -> None:
    await ctx.gather(ctx.gather(ctx.step("a", stage.stuck)), ctx.step("b", echo))


async def between(ctx: Context, stage: Stage) -> None:
    await ctx.step("a", echo)
    await stage.stuck()


async def swallows(ctx: Context, stage: Stage) -> str:
    try:
        await ctx.step("stuck", stage.stuck)
    except BaseException:  # noqa: BLE001
        return "as if nothing had been"
    return "never"


async def swallows_and_goes_on(ctx: Context, stage: Stage) -> None:
    while True:
        try:
            await ctx.step("stuck", stage.stuck)
        except BaseException:  # noqa: BLE001
            stage.seen.append("swallowed")
        else:
            return
        await ctx.step("more", must_not_run)


async def fails_over_it(ctx: Context, stage: Stage) -> None:
    try:
        await stage.stuck()
    finally:
        raise ValueError("a fault in cleaning up")


async def turns_it_into_an_error(ctx: Context, stage: Stage) -> None:
    async def stuck() -> None:
        try:
            await stage.stuck()
        except asyncio.CancelledError:
            raise ValueError("connection closed") from None

    await ctx.step("stuck", stuck, retry=Retry(attempts=5))


STUCK = [
    *(in_step, in_gather, in_nested_gather, between),
    *(swallows, swallows_and_goes_on, fails_over_it, turns_it_into_an_error),
]


async def must_not_run() -> None:
    raise AssertionError("a step ran in an attempt that is over")


@pytest.mark.parametrize(("how", "kind"), ENDINGS)
@pytest.mark.parametrize("where", STUCK)
async def test_an_attempt_can_be_ended_anywhere(
    where: Callable[[Context, Stage], Coroutine[Any, Any, Any]], how: str, kind: str
) -> None:
    stage = Stage()

    async def body(ctx: Context) -> Any:
        return await where(ctx, stage)

    run = Run(body)
    outcome = await interrupted(run, stage, how)
    assert outcome.kind == kind
    assert "CancelledError" in stage.seen
    assert "step:error" not in run.kinds
    if how == "cancel":
        assert run.kinds[-2:] == ["run:cancel", "run:error"]
        assert (run.status, run.last().code) == ("cancelled", "cancelled")
    else:
        assert "run:error" not in run.kinds


async def test_a_second_reason_wakes_a_body_that_swallowed_the_first() -> None:
    stage = Stage()

    async def stubborn(ctx: Context) -> None:
        for _ in range(2):
            try:
                await stage.stuck()
            except asyncio.CancelledError:
                continue

    run = Run(stubborn)
    attempt = asyncio.create_task(run.attempt())
    await stage.reached.wait()
    assert run.activation is not None
    run.activation.notice(Flag.CANCEL)
    await eventually(lambda: len(stage.seen) == 1)
    run.activation.stand_down()
    assert (await attempt).kind == "cancelled"


async def test_a_run_cancelled_before_its_first_call_never_starts() -> None:
    async def body(ctx: Context) -> None:
        raise AssertionError("the body was started")

    run = Run(body, flags=Flag.CANCEL)
    assert (await run.attempt()).kind == "cancelled"
    assert run.kinds == ["run:init", "run:cancel", "run:error"]


async def test_a_cancelled_run_is_replayed_to_where_it_was_so_that_it_can_clean_up() -> None:
    seen: list[Any] = []

    async def body(ctx: Context) -> None:
        seen.append(await ctx.step("a", echo, 1))
        try:
            await ctx.sleep(60)
        except asyncio.CancelledError:
            seen.append("cleaned up")
            raise

    run = Run(body)
    await run.attempt()
    seen.clear()
    run.flags = Flag.CANCEL
    assert (await run.attempt()).kind == "cancelled"
    assert seen == [1, "cleaned up"]


async def test_a_cancel_that_comes_with_a_reply_is_seen_after_the_step() -> None:
    async def body(ctx: Context) -> None:
        await ctx.step("a", echo)
        await ctx.step("b", must_not_run)

    run = Run(body)
    run.post(2, [])
    run.asked.clear()

    async def cancelled(ctx: Context) -> None:
        run.flags = Flag.CANCEL
        await body(ctx)

    run.body = cancelled
    assert (await run.attempt()).kind == "cancelled"
    assert run.kinds == ["run:init", "step:pending", "step:done", "run:cancel", "run:error"]


async def test_a_cancel_while_the_run_is_finishing_is_too_late() -> None:
    async def body(ctx: Context) -> str:
        return "done"

    class CancelledLate(Run):
        async def finish(self, *args: Any, **kwargs: Any) -> None:
            assert self.activation is not None
            self.activation.notice(Flag.CANCEL)
            await asyncio.sleep(0)
            await super().finish(*args, **kwargs)

    run = CancelledLate(body)
    assert (await run.attempt()).kind == "completed"
    assert run.result() == "done"


# Parking


async def test_a_sleep_parks_and_a_context_call_in_finally_is_suspended() -> None:
    seen: list[Any] = []

    async def body(ctx: Context) -> str:
        try:
            await ctx.sleep(60)
            return "slept"
        finally:
            try:
                await ctx.step("tidy", echo)
                seen.append("tidied")
            except BaseException as error:
                seen.append(type(error))
                raise

    run = Run(body)
    outcome = await run.attempt()
    assert (outcome.kind, seen) == ("parked", [Suspended])
    assert run.kinds == ["run:init", "timer:set"]
    run.now_ms = outcome.due_ms or 0
    await run.attempt()
    assert (run.result(), seen) == ("slept", [Suspended, "tidied"])


@pytest.mark.parametrize("spoiled", [ValueError, KeyError, SystemExit])
async def test_what_a_body_does_while_it_is_suspended_changes_nothing(
    spoiled: type[BaseException],
) -> None:
    async def body(ctx: Context) -> None:
        try:
            await ctx.sleep(60)
        except Suspended:
            raise spoiled from None

    run = Run(body)
    assert (await run.attempt()).kind == "parked"
    assert run.activation is not None
    run.activation.notice(Flag.CANCEL)  # too late: the next attempt sees it
    assert run.kinds == ["run:init", "timer:set"]


async def test_a_sleep_that_is_over_at_once_does_not_park() -> None:
    async def body(ctx: Context) -> str:
        await ctx.sleep(0)
        return "awake"

    run = Run(body)
    assert (await run.attempt()).kind == "completed"
    assert run.kinds == ["run:init", "timer:set", "timer:fired", "run:complete"]


@pytest.mark.parametrize("length", [-1, float("nan"), float("inf"), "5", None, 1e12])
async def test_a_sleep_has_a_sensible_length(length: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.sleep(length)

    assert (await failed(body)).code == "invalid_duration"


# The store


LOSSES: list[tuple[StoreError, str, type[BaseException]]] = [
    (TokenRefused("somebody else's"), "lost", LockLost),
    (JournalRolledBack("shorter"), "lost", LockLost),
    (StoreUnavailable("away"), "store_lost", StoreLost),
    (StoreEmptied("gone"), "store_lost", StoreLost),
    (WrongServer("no permission"), "store_lost", StoreLost),
]


@pytest.mark.parametrize(("refusal", "kind", "raised"), LOSSES)
async def test_losing_the_store_is_nothing_that_a_body_can_handle(
    refusal: StoreError, kind: str, raised: type[BaseException]
) -> None:
    seen: list[type[BaseException]] = []

    async def lose() -> int:
        run.refusal = refusal
        return 1

    async def body(ctx: Context) -> str:
        try:
            await ctx.step("a", lose)
        except Exception:  # noqa: BLE001
            return "took it for a failed step"
        except BaseException as error:  # noqa: BLE001
            seen.append(type(error))
        run.refusal = None
        await ctx.step("b", must_not_run)
        return "never"

    run = Run(body)
    outcome = await run.attempt()
    assert (outcome.kind, seen) == (kind, [raised])
    if kind == "store_lost":
        assert outcome.first_seq == 3
        assert [type(unpack(raw)) for raw in outcome.unsaved] == [StepDone]
    assert "run:error" not in run.kinds


async def test_a_loss_in_one_leg_wakes_the_others() -> None:
    stage = Stage()

    async def lose() -> None:
        await stage.reached.wait()
        run.refusal = TokenRefused("somebody else's")

    async def body(ctx: Context) -> None:
        await ctx.gather(ctx.step("a", stage.stuck), ctx.step("b", lose))

    run = Run(body)
    assert (await run.attempt()).kind == "lost"
    assert stage.seen == ["CancelledError"]


async def test_an_outage_that_the_body_meets_by_itself_fails_no_run() -> None:
    async def away() -> None:
        raise StoreUnavailable("away")

    async def in_step(ctx: Context) -> None:
        await ctx.step("submit", away)

    async def in_body(ctx: Context) -> None:
        await away()

    assert (await Run(in_step).attempt()).kind == "store_lost"
    assert (await Run(in_body).attempt()).kind == "store_lost"


# Errors


class Odd(PyrulaError):
    default_code = "odd"

    def __init__(self) -> None:
        super().__init__("odd", detail={"not": object()})


class Panic(BaseException):
    """What an extension written in Rust raises when it panics."""


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (ValueError("wrong"), "workflow_failed", "ValueError"),
        (Panic("rust"), "workflow_failed", "Panic"),
        (KeyboardInterrupt(), "workflow_failed", "KeyboardInterrupt"),
        (TimeoutError(), "workflow_failed", "TimeoutError"),
        (SystemExit(1), "workflow_failed", "SystemExit"),
        (asyncio.CancelledError(), "workflow_failed", "CancelledError"),
        (Odd(), "odd", "Odd"),
    ],
)
async def test_an_uncaught_exception_ends_the_run(
    error: BaseException, code: str, kind: str
) -> None:
    async def body(ctx: Context) -> None:
        raise error

    ended = await failed(body)
    assert (ended.code, ended.error_type) == (code, kind)


async def test_a_result_that_cannot_be_journaled_ends_the_run() -> None:
    async def body(ctx: Context) -> Any:
        return {"rows": [1, float("inf")]}

    ended = await failed(body)
    assert ended.code == "payload_not_serialisable"
    assert "$['rows'][1]" in ended.message


async def test_an_attempt_has_a_timeout_that_the_body_cannot_outsit() -> None:
    async def waits(ctx: Context) -> None:
        await asyncio.Event().wait()

    async def swallows(ctx: Context) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "in time, surely"
        return "never"

    for body in (waits, swallows):
        ended = await failed(body, timeout=0.01)
        assert (ended.code, ended.error_type) == ("timeout", "RunTimeout")


@pytest.mark.parametrize(("most", "steps"), [(50, 23), (10, 3), (3, 0)])
async def test_a_run_ends_at_its_event_cap_with_its_history_whole(most: int, steps: int) -> None:
    async def body(ctx: Context) -> None:
        for k in range(100):
            try:
                await ctx.step("s", echo, k)
            except Exception:  # noqa: BLE001
                return

    run = Run(body, limits=Limits(max_events=most))
    assert (await run.attempt()).kind == "failed"
    assert run.kinds[-2:] == ["stream:overflow", "run:error"]
    assert run.last().code == "stream_too_large"
    assert run.kinds.count("step:done") == run.kinds.count("step:pending") == steps
    assert len(run.events) <= most


@pytest.mark.parametrize(
    ("wanted", "maxlen", "cap"),
    [
        (50_000, 100_000, 50_000),
        (50_000, 50_000, 49_000),
        (50_000, 10_000, 9_000),
        (50_000, 100, 90),
        (50_000, 10, 8),
        (50_000, 3, 1),
        (5, 100, 5),
    ],
)
def test_the_cap_stays_under_what_the_store_keeps(wanted: int, maxlen: int, cap: int) -> None:
    assert event_cap(wanted, maxlen) == cap


async def test_a_run_ends_at_its_cap_before_the_store_trims_it() -> None:
    @workflow(name="endless")
    async def endless(ctx: Context) -> None:
        while True:
            await ctx.step("s", echo)

    async with serving(MemoryStore(SHARDS, maxlen=40), endless) as worker:
        handle = await worker.client.submit("endless", {})
        with pytest.raises(RunFailedError) as caught:
            await handle.result(timeout=10)
        assert caught.value.code == "stream_too_large"
        events = await handle.events()
        assert isinstance(events[0], RunInit)
        assert len(events) <= event_cap(50_000, 40) == 36
        await worker.client.close()


@pytest.mark.parametrize(("refusal", "kind", "raised"), LOSSES)
@pytest.mark.parametrize("write", ["finish", "park"])
async def test_losing_the_store_at_the_end_is_no_failure_of_the_run(
    refusal: StoreError, kind: str, raised: type[BaseException], write: str
) -> None:
    async def body(ctx: Context) -> None:
        await ctx.step("a", echo)
        run.refusal = refusal
        if write == "park":
            await ctx.sleep(60)

    run = Run(body)
    assert (await run.attempt()).kind == kind
    assert run.kinds == ["run:init", "step:pending", "step:done"]
