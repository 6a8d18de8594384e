"""What a workflow body may call.

Owns the author's view: steps, sleeps, parallel legs, and time, chance and ids that replay. Each
call gets its identity here, is served from the journal if it was recorded, and journaled if not.
Refuses calls from tasks that are no leg of the run and from inside a step, and any waiting in a
gather leg.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from pyrula.workflows.engine.crashpoints import crash_point
from pyrula.workflows.engine.env import Env
from pyrula.workflows.engine.identity import Leg, derived_random, derived_uuid
from pyrula.workflows.engine.records import Records
from pyrula.workflows.engine.registry import duration, name_of, seconds, step_options
from pyrula.workflows.engine.replay import CallRecord, ReplayState
from pyrula.workflows.engine.retry import NO_RETRY, Retry
from pyrula.workflows.engine.steps import StepCall, Steps, inputs_of, replayed
from pyrula.workflows.engine.unwinding import Doomed, StoreLost, Suspended, Unwinding, is_failure
from pyrula.workflows.engine.writer import JournalWriter
from pyrula.workflows.stores.base import Flag
from pyrula.workflows.stores.errors import (
    IncompatibleUpgradeError,
    InvalidInputError,
    PayloadError,
    PyrulaError,
    StoreEmptied,
    StoreUnavailable,
)
from pyrula.workflows.stores.events import TimerFired, TimerSet

# Serving records is the engine's own work: it lets the loop turn after so many of them.
_SERVED_AT_ONCE = 256


class ContextError(PyrulaError):
    """The body used its context in a way that can't replay.

    Codes: `context_outside_leg`, `context_in_step`, `wait_in_leg`.
    """

    default_code = "context_misused"


class Control(Protocol):
    """How the context asks its activation whether to go on."""

    def check(self) -> None:
        """Raise what unwinds the body, if it is to be unwound."""
        ...

    def notice(self, flags: Flag) -> None:
        """Take note of flags that came with a reply."""
        ...

    def unwind(self, reason: Unwinding) -> None:
        """From now on every call unwinds."""
        ...


class Context:
    """Handed to every workflow body as its first argument.

    >>> async def body(ctx, order_id: str) -> str:
    ...     charge = await ctx.step("charge", charge_card, order_id, timeout=30)
    ...     await ctx.sleep(60)
    ...     return charge
    """

    def __init__(
        self,
        identity: tuple[str, str],
        state: ReplayState,
        writer: JournalWriter,
        env: Env,
        control: Control,
    ) -> None:
        self._workflow, self._run_id = identity
        self._records = Records(state.calls, control.unwind)
        self._writer = writer
        self._env = env
        self._control = control
        self._steps = Steps(writer, env)
        self._main = Leg("", state.init.t if state.init else 0)
        self._legs: dict[asyncio.Task[Any] | None, Leg] = {asyncio.current_task(): self._main}

    @property
    def run_id(self) -> str:
        """The run's id; stable across replays, good for idempotency keys."""
        return self._run_id

    @property
    def workflow(self) -> str:
        """The name the workflow is registered under."""
        return self._workflow

    def now(self) -> datetime:
        """Time (UTC) of the newest event this leg has seen; never goes back, replays the same.

        Raises `ContextError` `context_outside_leg` in a task that is no leg of the run.
        """
        return datetime.fromtimestamp(self._leg(also_in_step=True).now_ms / 1000, UTC)

    def random(self) -> float:
        """A float in [0, 1), derived from run and place, so it replays the same.

        Raises `ContextError` as `step`.
        """
        return derived_random(self._run_id, self._derived_path("random")).random()

    def uuid(self) -> UUID:
        """A version 4 UUID, derived from run and place, so it replays the same.

        Raises `ContextError` as `step`.
        """
        return derived_uuid(self._run_id, self._derived_path("uuid"))

    async def step(
        self,
        target: str | Callable[..., Any],
        /,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | timedelta | None = None,
        retry: Retry | None = None,
    ) -> Any:
        """Run a function once and journal its result: `step(name, fn, *args)` or `step(fn, *args)`.

        The result is durable before this returns, and every later attempt gets it from the journal.
        An async `fn` runs on the loop, any other callable in a thread. `timeout` is in seconds, for
        one try. Raises `RemoteError` when the last try failed or its result can't be journaled,
        `PayloadError` for arguments that can't, `ContextError` for a call from inside a step
        (`context_in_step`) or from a task of the body's own (`context_outside_leg`).
        """
        leg = self._leg()
        call = self._call(leg.next_path(), target, args, kwargs, timeout, retry)
        record = self._records.take(call.path, "step", call.name, call.inputs)
        if record is not None and record.settled_ms is not None:
            return await self._serve(leg, call, record)
        await self._go_live(call.path)
        if record is None:
            return await self._run_step(leg, call, 0)
        if record.due_ms is not None and record.due_ms > self._env.now_ms():
            await self._park(None, record.due_ms)
        return await self._run_step(leg, call, record.tries)

    async def sleep(self, length: float | timedelta) -> None:
        """Park the run for `length` (seconds ≥ 0 or timedelta); it takes no slot meanwhile.

        The end is fixed and journaled when the sleep begins. Raises `InvalidInputError`
        `invalid_duration`, and `ContextError` as `step` or `wait_in_leg` inside a gather leg.
        """
        leg = self._leg()
        pause_ms = round(duration(length, "a sleep") * 1000)
        if not leg.is_main:
            raise ContextError(
                "expected no waiting inside a ctx.gather leg, found ctx.sleep in one; "
                "sleep before or after the gather",
                code="wait_in_leg",
            )
        path = leg.next_path()
        record = self._records.take(path, "timer", "sleep", "")
        if record is not None and record.settled_ms is not None:
            leg.saw(record.settled_ms)
            return
        await self._go_live(path)
        now = self._env.now_ms()
        if record is None:
            due = now + pause_ms
            await self._park(TimerSet(t=now, p=path, n="sleep", due=due), due)
        else:
            due = record.due_ms or 0
            if due > now:
                await self._park(None, due)
        fired = TimerFired(t=max(self._env.now_ms(), due), p=path)
        self._writer.note(fired)
        leg.saw(fired.t)

    async def gather(self, *legs: Awaitable[Any]) -> list[Any]:
        """Run legs side by side; results by position.

        Waits for every leg, also when one fails; then the first failure by position is raised. Legs
        may step and gather, but not wait. Raises `InvalidInputError` `invalid_leg` for something
        that can't be awaited, `ContextError` as `step`.
        """
        try:
            leg = self._leg()
            path = leg.next_path()
            self._records.check_gather(path)
            _check_legs(legs)
        except BaseException:
            _close(legs)
            raise
        if not legs:
            return []
        inner = [Leg(f"{path}.{k}.", leg.now_ms) for k in range(len(legs))]
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(_awaited(awaitable)) for awaitable in legs]
        self._legs.update(zip(tasks, inner, strict=True))
        try:
            await _all_ended(tasks)
        finally:
            for task in tasks:
                del self._legs[task]
        leg.saw(max(ended.now_ms for ended in inner))
        self._control.check()
        return [task.result() for task in tasks]

    def check_all_served(self, error: BaseException | None) -> None:
        """Refuse that the body ends (with `error`) while the journal holds more of its calls.

        Raises `Doomed`.
        """
        record = self._records.unserved()
        if record is None:
            return
        how = "returned" if error is None else f"raised {type(error).__name__}"
        raise self._doomed(
            f"expected the body to make call {record.path} ({record.kind} {record.name!r}) as "
            f"recorded, found that it {how} before; deploy code that makes the same calls in the "
            "same order",
            record,
        )

    # Where the call comes from

    def _leg(self, *, also_in_step: bool = False) -> Leg:
        try:
            leg = self._legs.get(asyncio.current_task())
        except RuntimeError:  # a thread: no loop runs there
            leg = None
        if leg is None:
            raise ContextError(
                "expected context calls from the workflow body or a ctx.gather leg, found one from "
                "another task or thread; start parallel work with ctx.gather",
                code="context_outside_leg",
            )
        if leg.in_step and not also_in_step:
            raise ContextError(
                "expected context calls between steps, found one inside a step; return from the "
                "step first",
                code="context_in_step",
            )
        return leg

    def _derived_path(self, what: str) -> str:
        path = self._leg().next_path()
        self._records.check_derived(path, what)
        return path

    def _call(
        self,
        path: str,
        target: str | Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        timeout: float | timedelta | None,
        retry: Retry | None,
    ) -> StepCall:
        fn: Any = target
        name = target
        if isinstance(target, str):
            fn, args = (args[0] if args else None), args[1:]
        if not callable(fn):
            raise InvalidInputError(
                f"expected ctx.step(name, function, …) or ctx.step(function, …), found {fn!r}",
                code="invalid_step",
            )
        options = step_options(fn)
        if not isinstance(name, str):
            name = options.name if options else name_of(fn)
        limit = seconds(timeout, "timeout")
        if options is not None:
            limit = limit if limit is not None else options.timeout
            retry = retry or options.retry
        what = f"step {name!r}"
        inputs = inputs_of(what, args, kwargs, self._env.limits.payload_bytes)
        return StepCall(path, name, fn, args, kwargs or {}, limit, retry or NO_RETRY, inputs)

    # Replaying

    async def _serve(self, leg: Leg, call: StepCall, record: CallRecord) -> Any:
        if record.settled_ms is not None:
            leg.saw(record.settled_ms)
        if len(self._records) % _SERVED_AT_ONCE == 0:
            await self._env.sleeper.sleep(0)
        try:
            return replayed(call, record)
        except PayloadError as error:
            raise self._doomed(error.message, record) from error

    async def _go_live(self, path: str) -> None:
        """The call has no recorded outcome: make it now, if it is to be made."""
        self._control.check()
        if self._records.overtaken(path):
            await asyncio.get_running_loop().create_future()

    # Living

    async def _run_step(self, leg: Leg, call: StepCall, tries: int) -> Any:
        """Try until the step succeeds or has failed for good."""
        while True:
            tries += 1
            self._steps.begin(call)
            leg.in_step = True
            try:
                value = await self._steps.call(call)
                result, at_ms = await self._steps.complete(call, value)
            except BaseException as error:
                if not is_failure(error):
                    raise
                failure = error  # whatever the user's code raised
            else:
                return self._seen(leg, at_ms, result)
            finally:
                leg.in_step = False
                self._steps.left()
            await self._after_failure(leg, call, failure, tries)

    async def _after_failure(
        self, leg: Leg, call: StepCall, error: BaseException, tries: int
    ) -> None:
        """Return when it is time for another try. Raises `RemoteError` if there is none."""
        # A step that turned being unwound into an error of its own has not failed.
        self._control.check()
        if not call.retry.allows(error, tries):
            if isinstance(error, StoreUnavailable | StoreEmptied):
                # The step used a client of its own: an outage fails no run.
                self._control.unwind(StoreLost(error.message))
                self._control.check()
            remote, at_ms = await self._steps.fail(call, error, tries)
            raise self._seen(leg, at_ms, remote) from error
        delay = call.retry.delay_after(tries, self._run_id, call.path)
        if delay <= self._env.limits.park_retry_s or not leg.is_main:
            self._steps.note_try(call, error, tries, None)
            await self._env.sleeper.sleep(delay)
            self._control.check()
            return
        retry_at = self._env.now_ms() + round(delay * 1000)
        self._steps.note_try(call, error, tries, retry_at)
        await self._park(None, retry_at)

    async def _park(self, opened: TimerSet | None, due_ms: int) -> None:
        """Give the run up until `due_ms`; returns only if that is now."""
        crash_point("before_park")
        reply = await self._writer.park(opened, due_ms)
        if reply.outcome == "parked":
            crash_point("after_park")
            self._control.unwind(Suspended(due_ms))
        elif reply.outcome == "cancel":
            self._control.notice(Flag.CANCEL)
        self._control.check()

    def _seen(self, leg: Leg, at_ms: int, result: Any) -> Any:
        leg.saw(at_ms)
        if self._writer.flags:
            self._control.notice(self._writer.flags)
        self._control.check()
        return result

    def _doomed(self, message: str, record: CallRecord) -> Doomed:
        detail = {"path": record.path, "recorded": record.name, "asked": None}
        doomed = Doomed(IncompatibleUpgradeError(message, detail=detail))
        self._control.unwind(doomed)
        return doomed


def _check_legs(legs: Sequence[Any]) -> None:
    for position, leg in enumerate(legs):
        if not inspect.isawaitable(leg):
            raise InvalidInputError(
                f"expected ctx.gather to get awaitables, found {type(leg).__qualname__} at "
                f"position {position}; call the function: ctx.gather(ctx.step(…), …)",
                code="invalid_leg",
            )


def _close(legs: Sequence[Any]) -> None:
    """They will never run: not worth a warning beside the error that says why."""
    for leg in legs:
        if inspect.iscoroutine(leg):
            leg.close()


async def _awaited(leg: Awaitable[Any]) -> Any:
    try:
        return await leg
    except (SystemExit, KeyboardInterrupt) as error:
        # Out of a task of its own it would stop the event loop, and every other run with it.
        raise RuntimeError(f"a gather leg tried to exit the process ({error})") from error


async def _all_ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Return when all have ended; being cancelled cancels them first."""
    cancelled: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
            for task in tasks:
                task.cancel()
    for task in tasks:
        # Looked at here, so that the loop doesn't report what is raised by position later.
        _ = task.cancelled() or task.exception()
    if cancelled is not None:
        raise cancelled
