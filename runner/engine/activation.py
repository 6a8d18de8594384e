"""One attempt of a run, from its journal to its outcome.

Owns the order: fold the journal, bind parameters, run the body, write the terminal event or leave
the run parked. Everything that can end an attempt becomes one `Outcome`. The first reason to unwind
decides it, whatever the body makes of it. Refuses to claim, renew or requeue: the worker does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pyrula.workflows.engine.context import Context
from pyrula.workflows.engine.crashpoints import crash_point
from pyrula.workflows.engine.env import Env, Journal
from pyrula.workflows.engine.failures import run_error
from pyrula.workflows.engine.payload import encode
from pyrula.workflows.engine.registry import WorkflowDefinition
from pyrula.workflows.engine.replay import ReplayState, reconstruct_state
from pyrula.workflows.engine.unwinding import (
    Cancelled,
    Doomed,
    LockLost,
    StoodDown,
    StoreLost,
    Suspended,
    Unwinding,
    is_failure,
)
from pyrula.workflows.engine.writer import JournalWriter, StreamTooLargeError
from pyrula.workflows.stores.base import Flag
from pyrula.workflows.stores.errors import (
    IncompatibleUpgradeError,
    PyrulaError,
    StoreEmptied,
    StoreUnavailable,
)
from pyrula.workflows.stores.events import (
    Event,
    Raw,
    RunCancel,
    RunComplete,
    RunError,
    StreamOverflow,
    unpack,
)

# Folding is the engine's own work: it lets the loop turn after so many events.
_FOLDED_AT_ONCE = 1_000

Terminal = Literal["completed", "failed", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an attempt ended.

    `lost`: the token was refused, nothing more is ours. `store_lost` and `stood_down`: the run is
    still locked and `unsaved` (from sequence `first_seq` on) may not have arrived; the worker
    requeues it with them.
    """

    kind: Terminal | Literal["parked", "lost", "store_lost", "stood_down"]
    due_ms: int | None = None
    first_seq: int = 0
    unsaved: list[bytes] = field(default_factory=list[bytes])


class RunTimeout(PyrulaError):
    """An attempt took longer than the workflow's timeout."""

    default_code = "timeout"


class Activation:
    """One attempt. `run` is awaited once; the other methods are called from the same loop.

    `run_id`, `history` (the whole journal) and `flags` come from the claim.
    """

    def __init__(
        self,
        definition: WorkflowDefinition,
        run_id: str,
        history: Sequence[bytes],
        journal: Journal,
        env: Env,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        self._definition = definition
        self._run_id = run_id
        self._history = history
        self._env = env
        self._writer = JournalWriter(journal, len(history), env.limits, self.unwind)
        self._ending: Unwinding | None = None
        self._in_body = False
        self._task: asyncio.Task[Any] | None = None
        self.notice(flags)

    # Called by the worker

    def lock_lost(self) -> None:
        """The token was refused elsewhere (a renewal): unwind, write nothing more."""
        self.unwind(LockLost())

    def stand_down(self) -> None:
        """Give the run up for somebody else to go on with; unwind the body."""
        self.unwind(StoodDown())

    def given_up(self, kind: Literal["store_lost", "stood_down"]) -> Outcome:
        """The attempt ends here without an end of the run: what has to go with the requeue."""
        first_seq, unsaved = self._writer.unsaved()
        return Outcome(kind=kind, first_seq=first_seq, unsaved=unsaved)

    # Called by the context, too

    def notice(self, flags: Flag) -> None:
        """Take note of what others want of this run."""
        if flags and flags & Flag.CANCEL and not isinstance(self._ending, Cancelled):
            self.unwind(Cancelled())

    def check(self) -> None:
        """Raise what unwinds the body, if anything does."""
        if self._ending is None and not self._env.lock_trusted():
            self.unwind(StoodDown())
        if self._ending is None:
            return
        if isinstance(self._ending, Cancelled | StoodDown):
            raise asyncio.CancelledError
        raise self._ending

    def unwind(self, reason: Unwinding) -> None:
        """Unwind the body. The first reason decides the outcome, but for a lost lock.

        A body that waits for something else than the context is woken by a cancellation, once for
        each reason, so that one which swallowed the first is not left waiting.
        """
        if isinstance(self._ending, Suspended):
            return
        if self._ending is None or isinstance(reason, LockLost):
            self._ending = reason
        task = self._task
        if self._in_body and task is not None and task is not asyncio.current_task():
            task.cancel()

    # The attempt

    async def run(self) -> Outcome:
        """Replay, run the body live, and end in exactly one outcome."""
        self._task = asyncio.current_task()
        result: bytes | BaseException
        try:
            result = await self._result()
        except GeneratorExit:
            raise  # this coroutine is closed: nothing may be awaited any more
        except BaseException as error:  # noqa: BLE001
            result = error  # any failure of the body ends its run, and only its run
        self._judge(result)
        try:
            return await self._conclude(result)
        except LockLost:
            return Outcome(kind="lost")
        except StoreLost:
            return self.given_up("store_lost")
        except asyncio.CancelledError:
            return self.given_up("stood_down")

    async def _result(self) -> bytes:
        state = await self._folded()
        if state.init is None:
            raise IncompatibleUpgradeError(
                f"expected run {self._run_id} to begin with run:init, found another event; "
                "the journal is damaged"
            )
        if not state.calls:
            self.check()
        params = self._definition.bind(bytes(state.init.params))
        identity = (self._definition.name, self._run_id)
        context = Context(identity, state, self._writer, self._env, self)
        self._in_body = True
        try:
            value = await self._body(context, params)
        finally:
            self._in_body = False
        return encode(value, "the result of the run", self._env.limits.payload_bytes)

    async def _folded(self) -> ReplayState:
        state = ReplayState()
        for first in range(0, len(self._history), _FOLDED_AT_ONCE):
            if first:
                await self._env.sleeper.sleep(0)
            reconstruct_state(map(unpack, self._history[first : first + _FOLDED_AT_ONCE]), state)
        return state

    async def _body(self, context: Context, params: dict[str, Any]) -> Any:
        bound = asyncio.timeout(self._definition.timeout)
        value, failure = None, None
        try:
            async with bound:
                value = await self._definition.fn(context, **params)
        except BaseException as error:
            if not is_failure(error):
                raise
            failure = error  # judged below
        if bound.expired():
            raise RunTimeout(
                f"expected an attempt of workflow {self._definition.name!r} to take at most "
                f"{self._definition.timeout} seconds, found one that took longer"
            ) from failure
        if self._ending is None:
            context.check_all_served(failure)
        if failure is not None:
            raise failure
        return value

    def _judge(self, result: bytes | BaseException) -> None:
        """See a reason to give the run up in what came out of the body unasked."""
        task = self._task
        cancelled = task is not None and task.cancelling() > 0
        while task is not None and task.cancelling():
            task.uncancel()
        if self._ending is not None:
            return
        if cancelled and isinstance(result, asyncio.CancelledError):
            self._ending = StoodDown()
        elif isinstance(result, StoreUnavailable | StoreEmptied):
            # The body used a client of its own: an outage fails no run.
            self._ending = StoreLost(result.message)

    # The outcome

    async def _conclude(self, result: bytes | BaseException) -> Outcome:
        now = self._env.now_ms()
        match self._ending:
            case Suspended() as suspended:
                return Outcome(kind="parked", due_ms=suspended.due_ms)
            case LockLost():
                return Outcome(kind="lost")
            case StoreLost():
                return self.given_up("store_lost")
            case StoodDown():
                return self.given_up("stood_down")
            case Cancelled():
                return await self._end(_cancel_events(now), "cancelled")
            case Doomed() as doomed:
                return await self._end(_doom_events(doomed.error, now), "failed")
            case _:
                pass
        if isinstance(result, BaseException):
            return await self._end([run_error(result, now)], "failed")
        return await self._end([RunComplete(t=now, result=Raw(result))], "completed")

    async def _end(self, events: list[Event], status: Terminal) -> Outcome:
        crash_point("before_finish")
        await self._writer.finish(events, status)
        crash_point("after_finish")
        return Outcome(kind=status)


def _cancel_events(now: int) -> list[Event]:
    message = "the run was cancelled by its caller"
    return [
        RunCancel(t=now),
        RunError(t=now, code="cancelled", error_type="RunCancelledError", message=message),
    ]


def _doom_events(error: PyrulaError, now: int) -> list[Event]:
    end = run_error(error, now)
    if isinstance(error, StreamTooLargeError):
        return [StreamOverflow(t=now, limit=int(error.detail["limit"])), end]
    return [end]
