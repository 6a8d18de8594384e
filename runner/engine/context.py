"""What a workflow body may call.

Owns the author's view: steps, sleeps, parallel legs, and time, chance and ids that replay. Each call
gets its identity here, is served from the journal if it was recorded, and journaled if not. Refuses
calls from tasks that are no leg of the run, and any waiting inside a gather leg.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, Protocol
from uuid import UUID

from pyrula.workflows.engine.crashpoints import crash_point
from pyrula.workflows.engine.env import Env
from pyrula.workflows.engine.identity import Leg, derived_random, derived_uuid
from pyrula.workflows.engine.registry import seconds, step_options
from pyrula.workflows.engine.replay import CallRecord, ReplayState
from pyrula.workflows.engine.retry import Retry
from pyrula.workflows.engine.steps import StepCall, Steps, replayed, step_call
from pyrula.workflows.engine.unwinding import Suspended
from pyrula.workflows.engine.writer import JournalWriter
from pyrula.workflows.stores.base import Flag
from pyrula.workflows.stores.errors import (
    IncompatibleUpgradeError,
    InvalidInputError,
    PyrulaError,
)
from pyrula.workflows.stores.events import TimerFired, TimerSet


class ContextError(PyrulaError):
    """The body used its context in a way that can't replay (`context_outside_leg`, …)."""

    default_code = "context_misused"


class Control(Protocol):
    """How the context asks its activation whether to go on."""

    def check(self) -> None:
        """Raise what unwinds the body, if it is to be unwound."""
        ...

    def notice(self, flags: Flag) -> None:
        """Take note of flags that came with a reply."""
        ...

    def parked(self, due_ms: int) -> None:
        """The run was given up until `due_ms`; every later call unwinds."""
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
        self._records = dict(state.calls)
        self._writer = writer
        self._env = env
        self._control = control
        self._steps = Steps(writer, env, self._run_id)
        self._main = asyncio.current_task()
        self._legs: dict[asyncio.Task[Any] | None, Leg] = {self._main: Leg()}
        self._now_ms = state.init.t if state.init else 0

    @property
    def run_id(self) -> str:
        """The run's id; stable across replays, good for idempotency keys."""
        return self._run_id

    @property
    def workflow(self) -> str:
        """The name the workflow is registered under."""
        return self._workflow

    @property
    def unserved(self) -> list[CallRecord]:
        """Recorded outcomes that the body has not asked for."""
        return [r for r in self._records.values() if r.settled_ms is not None]

    def now(self) -> datetime:
        """Time (UTC) of the newest event the body has seen; never goes back, replays the same."""
        return datetime.fromtimestamp(self._now_ms / 1000, UTC)

    def random(self) -> float:
        """A float in [0, 1), derived from run and place, so it replays the same."""
        return derived_random(self._run_id, self._leg().next_path()).random()

    def uuid(self) -> UUID:
        """A version 4 UUID, derived from run and place, so it replays the same."""
        return derived_uuid(self._run_id, self._leg().next_path())

    async def step(
        self,
        target: str | Callable[..., Any],
        /,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109  a journaled policy
        retry: Retry | None = None,
    ) -> Any:
        """Run a function once and journal its result: `step(name, fn, *args)` or `step(fn, *args)`.

        The result is durable before this returns, and every later attempt gets it from the journal.
        An async `fn` runs on the loop, any other callable in a thread. `timeout` is in seconds, for
        one try. Raises `RemoteError` when the last try failed, `PayloadError` for arguments or a
        result that can't be journaled.
        """
        path = self._leg().next_path()
        fn = args[0] if isinstance(target, str) and args else target
        declared = step_options(fn) if callable(fn) else None
        if not callable(fn):
            raise InvalidInputError(
                f"expected ctx.step(name, function, …) or ctx.step(function, …), found {fn!r}",
                code="invalid_step",
            )
        own = (declared.name, declared.timeout, declared.retry) if declared else None
        limit = seconds(timeout, "timeout")
        call = step_call(path, target, args, (kwargs, limit, retry), own)
        return await self._run_step(call)

    async def _run_step(self, call: StepCall) -> Any:
        tries, retry_at = 0, None
        record = self._records.pop(call.path, None)
        if record is not None:
            self._match(record, "step", call.name, call.inputs(self._env.limits.payload_bytes))
            if record.settled_ms is not None:
                self._seen(record.settled_ms)
                return replayed(call, record)
            tries, retry_at = record.tries, record.due_ms
        self._control.check()
        if retry_at is not None and retry_at > self._env.now_ms():
            await self._park(None, retry_at)
        while True:
            tries += 1
            self._steps.begin(call)
            try:
                value = await self._steps.call(call)
            except Exception as error:  # noqa: BLE001  whatever the user's code raised
                await self._failed(call, error, tries)
            else:
                result, at = await self._steps.complete(call, value)
                return self._after(at, result)

    async def _failed(self, call: StepCall, error: Exception, tries: int) -> None:
        if not call.retry.allows(error, tries):
            remote, at = await self._steps.fail(call, error, tries)
            self._after(at, None)
            raise remote from error
        delay = call.retry.delay_after(tries, self._run_id, call.path)
        if delay <= self._env.limits.park_retry_s or not self._leg().is_main:
            self._steps.note_try(call, error, tries, None)
            await self._env.sleeper.sleep(delay)
            self._control.check()
            return
        retry_at = self._env.now_ms() + int(delay * 1000)
        self._steps.note_try(call, error, tries, retry_at)
        await self._park(None, retry_at)

    async def sleep(self, duration: float | timedelta) -> None:
        """Park the run for `duration` (seconds ≥ 0 or timedelta); it takes no slot meanwhile.

        The end is fixed and journaled when the sleep begins. Raises `InvalidInputError` for a
        negative duration, `ContextError` `wait_in_leg` inside a gather leg.
        """
        leg = self._leg()
        path = leg.next_path()
        length = duration.total_seconds() if isinstance(duration, timedelta) else duration
        if not length >= 0:
            raise InvalidInputError(
                f"expected a sleep of 0 seconds or more, found {duration!r}",
                code="invalid_duration",
            )
        if not leg.is_main:
            raise ContextError(
                "expected no waiting inside a ctx.gather leg, found ctx.sleep in one; "
                "sleep before or after the gather",
                code="wait_in_leg",
            )
        record = self._records.pop(path, None)
        opened = None
        if record is not None:
            self._match(record, "timer", "sleep", "")
            if record.settled_ms is not None:
                self._seen(record.settled_ms)
                return
            due = record.due_ms or 0
        else:
            self._control.check()
            now = self._env.now_ms()
            due = now + round(length * 1000)
            opened = TimerSet(t=now, p=path, n="sleep", due=due)
        if opened is not None or due > self._env.now_ms():
            await self._park(opened, due)
        fired = TimerFired(t=max(self._env.now_ms(), due), p=path)
        self._writer.note(fired)
        self._seen(fired.t)

    async def gather(self, *legs: Awaitable[Any]) -> list[Any]:
        """Run legs side by side; results by position.

        Waits for every leg, also when one fails; then the first failure by position is raised. Legs
        may step and gather, but not wait.
        """
        path = self._leg().next_path()
        tasks = [self._start_leg(f"{path}.{k}.", leg) for k, leg in enumerate(legs)]
        if not tasks:
            return []
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
        finally:
            failed = [task.exception() for task in tasks if task.done() and not task.cancelled()]
            for task in tasks:
                self._legs.pop(task, None)
        self._control.check()
        for error in failed:
            if error is not None:
                raise error
        return [task.result() for task in tasks]

    def _start_leg(self, prefix: str, leg: Awaitable[Any]) -> asyncio.Task[Any]:
        async def run() -> Any:
            return await leg

        task = asyncio.get_running_loop().create_task(run())
        self._legs[task] = Leg(prefix)
        return task

    def _leg(self) -> Leg:
        leg = self._legs.get(asyncio.current_task())
        if leg is not None:
            return leg
        raise ContextError(
            "expected context calls from the workflow body or a ctx.gather leg, found one from "
            "another task; start parallel work with ctx.gather",
            code="context_outside_leg",
        )

    async def _park(self, opened: TimerSet | None, due_ms: int) -> None:
        """Give the run up until `due_ms`; returns only if that is now."""
        crash_point("before_park")
        reply = await self._writer.park(opened, due_ms)
        if reply.outcome == "cancel":
            self._control.notice(Flag.CANCEL)
        if reply.outcome == "parked":
            crash_point("after_park")
            self._control.parked(due_ms)
            raise Suspended
        self._control.check()

    def _after(self, at_ms: int, result: Any) -> Any:
        self._seen(at_ms)
        if self._writer.flags:
            self._control.notice(self._writer.flags)
        self._control.check()
        return result

    def _seen(self, at_ms: int) -> None:
        self._now_ms = max(self._now_ms, at_ms)

    def _match(self, record: CallRecord, kind: str, name: str, inputs: str) -> None:
        if (record.kind, record.name, record.inputs) == (kind, name, inputs):
            return
        _diverged(record, kind, name)


def _diverged(record: CallRecord, kind: str, name: str) -> NoReturn:
    same = (record.kind, record.name) == (kind, name)
    found = "the same call with other inputs" if same else f"{kind} {name!r}"
    raise IncompatibleUpgradeError(
        f"expected call {record.path} to be {record.kind} {record.name!r} as recorded, found "
        f"{found}; deploy code that makes the same calls in the same order, or start a new run",
        detail={"path": record.path, "recorded": record.name, "asked": name},
    )
