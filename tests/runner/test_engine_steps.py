"""A step: journaled before and after, called as what it is, tried again as its policy says."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable
from typing import Any

import pytest

from pyrula.workflows.engine.context import Context
from pyrula.workflows.engine.env import Limits
from pyrula.workflows.engine.failures import RemoteError
from pyrula.workflows.engine.registry import step
from pyrula.workflows.engine.retry import Retry
from pyrula.workflows.stores.errors import InvalidInputError
from pyrula.workflows.stores.events import StepError, StepPending
from tests.support.attempts import Run, completed, failed

NOW = Retry(attempts=3, first_delay=0.0)


async def number(value: int = 7) -> int:
    return value


def pick(position: int = 0) -> int:
    return [10, 20][position + 2]


async def test_a_step_costs_one_post_and_one_awaited_append() -> None:
    async def body(ctx: Context) -> int:
        return sum([await ctx.step("n", number, k) for k in range(10)])

    run = Run(body)
    await run.attempt()
    assert run.result() == 45
    assert run.asked == ["post", "append"] * 10 + ["finish"]


async def test_pending_is_in_the_journal_before_the_body_of_the_step_runs() -> None:
    seen: list[str] = []

    async def body(ctx: Context) -> None:
        await ctx.step("look", lambda: seen.extend(run.kinds))

    run = Run(body)
    await run.attempt()
    assert seen == ["run:init", "step:pending"]


async def test_write_behind_flushes_at_the_buffer_size_and_at_the_end() -> None:
    async def body(ctx: Context) -> None:
        for k in range(5):
            await ctx.step("n", number, k)

    limits = Limits(step_boundary_durability=False, event_buffer_size=4)
    run = Run(body, limits=limits)
    await run.attempt()
    assert run.asked == ["append", "append", "finish"]
    assert run.kinds == ["run:init", *["step:pending", "step:done"] * 5, "run:complete"]


class Doubler:
    def __call__(self, value: int) -> int:
        return value * 2

    def method(self, value: int) -> int:
        return value * 2

    async def slow_method(self, value: int) -> int:
        return value * 2


class AsyncDoubler:
    async def __call__(self, value: int) -> int:
        return value * 2


async def double(value: int) -> int:
    return value * 2


def plain_double(value: int) -> int:
    return value * 2


def times(factor: int, value: int) -> int:
    return factor * value


def later(value: int) -> Awaitable[int]:
    return double(value)


@pytest.mark.parametrize(
    "fn",
    [
        double,
        later,
        plain_double,
        functools.partial(double),
        functools.partial(later),
        functools.partial(times, 2),
        Doubler(),
        Doubler().method,
        Doubler().slow_method,
        AsyncDoubler(),
        functools.partial(Doubler().method),
    ],
)
async def test_every_kind_of_callable_is_a_step(fn: Any) -> None:
    async def body(ctx: Context) -> list[Any]:
        return [await ctx.step("n", fn, 21), await ctx.step(fn, 4)]

    assert await completed(body) == [42, 8]


async def test_a_decorated_step_brings_its_name_and_options() -> None:
    @step(name="count", timeout=30, retry=NOW)
    async def counted(value: int) -> int:
        tries.append(value)
        if len(tries) < 3:
            raise ValueError("not yet")
        return value

    @step
    def plain() -> str:
        return "plain"

    tries: list[int] = []

    async def body(ctx: Context) -> list[Any]:
        return [await ctx.step(counted, 5), await ctx.step(plain)]

    run = Run(body)
    await run.attempt()
    assert run.result() == [5, "plain"]
    assert {e.n for e in run.journal if isinstance(e, StepPending)} == {"count", "plain"}
    assert await counted(9) == 9  # still callable as it was


async def test_keyword_arguments_reach_the_step_and_its_identity() -> None:
    async def charge(order: str, *, idempotency_key: str) -> str:
        return f"{order} {idempotency_key}"

    async def body(ctx: Context, key: str) -> str:
        result: str = await ctx.step("charge", charge, "o1", kwargs={"idempotency_key": key})
        return result

    run = Run(body, {"key": "k1"})
    await run.attempt()
    assert run.result() == "o1 k1"
    other = Run(body, {"key": "k2"})
    await other.attempt()
    assert hashes(run) != hashes(other)


def hashes(run: Run) -> list[str]:
    return [event.h for event in run.journal if isinstance(event, StepPending)]


# Failing


async def test_a_failed_step_is_the_same_remote_error_live_and_on_replay() -> None:
    seen: list[tuple[Any, ...]] = []

    async def body(ctx: Context) -> str:
        try:
            await ctx.step("bad", pick)
        except RemoteError as error:
            seen.append((error.type_name, error.message, error.code, error.step))
        return "went on"

    run = Run(body)
    await run.attempt()
    assert run.result() == "went on"
    await run.again(upto=-1).attempt()
    assert seen == [("IndexError", "list index out of range", "step_failed", "bad")] * 2


async def test_an_uncaught_failure_of_a_step_ends_the_run_by_its_name() -> None:
    async def body(ctx: Context) -> None:
        await ctx.step("bad", pick)

    error = await failed(body)
    assert (error.code, error.error_type) == ("step_failed", "IndexError")
    assert error.detail == {"step": "bad"}


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("I won't say")


class Panic(BaseException):
    """What an extension written in Rust raises when it panics."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Mute(), "Mute"),
        (Panic("rust"), "Panic"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ValueError("\ud800"), "ValueError"),
        (SystemExit(3), "SystemExit"),
        (asyncio.CancelledError(), "RuntimeError"),
        (ExceptionGroup("many", [ValueError("a")]), "ExceptionGroup"),
        (ValueError("x" * 100_000), "ValueError"),
    ],
)
async def test_whatever_a_step_raises_is_a_failure_of_the_step(
    error: BaseException, kind: str
) -> None:
    async def raises() -> None:
        raise error

    async def body(ctx: Context) -> None:
        await ctx.step("bad", raises)

    ended = await failed(body)
    assert ended.error_type == kind
    assert len(ended.message) <= 4096


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (float("nan"), "payload_not_serialisable"),
        ({"a": ["\ud800"]}, "payload_not_serialisable"),
        (object(), "payload_not_serialisable"),
        ("x" * 2_000, "payload_too_large"),
    ],
)
async def test_a_result_that_cannot_be_journaled_fails_the_step_at_once(
    value: Any, code: str
) -> None:
    calls: list[int] = []

    async def make() -> Any:
        calls.append(1)
        return value

    async def body(ctx: Context) -> None:
        await ctx.step("make", make, retry=NOW)

    run = Run(body, limits=Limits(payload_bytes=1_000))
    await run.attempt()
    assert (run.last().code, run.last().error_type, len(calls)) == (code, "PayloadError", 1)
    assert "step 'make'" in run.last().message
    assert run.kinds[-2:] == ["step:error", "run:error"]


async def test_a_result_of_another_type_than_declared_fails_the_step() -> None:
    async def lies() -> int:
        return "seven"  # type: ignore[return-value]

    async def body(ctx: Context) -> None:
        await ctx.step("lies", lies)

    assert (await failed(body)).code == "result_type_mismatch"


async def test_arguments_that_cannot_be_journaled_are_named() -> None:
    async def body(ctx: Context) -> None:
        await ctx.step("n", number, {"a": [1, object()]})

    run = Run(body)
    await run.attempt()
    assert "$[0]['a'][1]" in run.last().message
    assert run.kinds == ["run:init", "run:error"]


async def test_a_step_that_takes_too_long_is_a_timeout_error() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    async def body(ctx: Context) -> None:
        await ctx.step("forever", forever, timeout=0.01, retry=Retry(attempts=2, first_delay=0.0))

    run = Run(body)
    await run.attempt()
    assert (run.last().error_type, run.last().code) == ("TimeoutError", "step_failed")
    assert "at most 0.01 seconds" in run.last().message
    assert run.kinds.count("step:error") == 2


@pytest.mark.parametrize("call", ["", "fn", 5, None])
async def test_a_step_without_a_function_is_refused(call: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.step(call)

    assert (await failed(body)).code == "invalid_step"


# Tried again


async def test_tries_are_journaled_and_the_last_failure_is_final() -> None:
    async def bad() -> None:
        raise ValueError("no")

    async def body(ctx: Context) -> None:
        await ctx.step("bad", bad, retry=NOW)

    run = Run(body)
    await run.attempt()
    errors = [e for e in run.journal if isinstance(e, StepError)]
    assert [(e.tries, e.final) for e in errors] == [(1, False), (2, False), (3, True)]


def refuses(error: Exception) -> bool:
    return "index" not in str(error)


def breaks(error: Exception) -> bool:
    raise KeyError(error)


@pytest.mark.parametrize(
    "policy",
    [
        {"non_retryable": (LookupError,)},
        {"retry_if": refuses},
        {"retry_if": breaks},
    ],
)
async def test_some_failures_are_not_tried_again(policy: dict[str, Any]) -> None:
    async def body(ctx: Context) -> None:
        retry = Retry(attempts=5, first_delay=0.0, **policy)
        await ctx.step("bad", pick, retry=retry)

    run = Run(body)
    await run.attempt()
    assert run.kinds.count("step:error") == 1
    assert run.last().error_type == "IndexError"


async def test_a_long_delay_parks_the_run_and_goes_on_with_the_next_try() -> None:
    calls: list[int] = []

    async def flaky() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise ValueError("no")
        return "yes"

    async def body(ctx: Context) -> str:
        policy = Retry(attempts=3, first_delay=60.0, factor=1.0, jitter=0.0)
        result: str = await ctx.step("flaky", flaky, retry=policy)
        return result

    run = Run(body)
    for _ in range(2):
        outcome = await run.attempt()
        assert (outcome.kind, run.status) == ("parked", "sleeping")
        assert outcome.due_ms is not None
        early = run.again()
        assert (await early.attempt()).kind == "parked"  # woken too early: no try is made
        run.now_ms = outcome.due_ms
    await run.attempt()
    assert (run.result(), len(calls)) == ("yes", 3)


def test_a_delay_grows_to_its_cap_and_is_the_same_in_every_process() -> None:
    policy = Retry(attempts=10_000, cap=60.0)
    assert [policy.delay_after(5_000, "r", "0") for _ in range(2)] == [
        policy.delay_after(5_000, "r", "0")
    ] * 2
    assert 54.0 <= policy.delay_after(5_000, "r", "0") <= 60.0
    assert policy.delay_after(1, "r", "0") != policy.delay_after(1, "r", "1")


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"first_delay": -1.0}, {"factor": 0.5}, {"cap": -1}, {"jitter": 2.0}]
)
def test_a_wrong_policy_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Retry(**wrong)
    assert caught.value.code == "invalid_retry"
