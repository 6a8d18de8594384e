"""One attempt of a run, from its journal to its outcome.

Owns the order: fold the journal, bind parameters, run the body, write the terminal event or leave
the run parked. Everything that can end an attempt becomes one `Outcome`. Refuses to claim, renew or
requeue: the worker does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pyrula.workflows.engine.context import Context
from pyrula.workflows.engine.crashpoints import crash_point
from pyrula.workflows.engine.env import Env, Journal
from pyrula.workflows.engine.payload import decode_plain, encode
from pyrula.workflows.engine.registry import WorkflowDefinition
from pyrula.workflows.engine.replay import ReplayState, reconstruct_state
from pyrula.workflows.engine.steps import RemoteError
from pyrula.workflows.engine.unwinding import LockLost, StreamTooLarge, Suspended
from pyrula.workflows.engine.writer import JournalWriter
from pyrula.workflows.stores.base import Flag, Status
from pyrula.workflows.stores.errors import (
    IncompatibleUpgradeError,
    JournalRolledBack,
    PyrulaError,
    StoreEmptied,
    StoreUnavailable,
    TokenRefused,
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


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an attempt ended.

    `lost`: the token was refused, nothing more is ours. `store_lost` and `stood_down`: the run is
    still locked and `unsaved` (from sequence `first_seq` on) may not have arrived; the worker
    requeues it with them.
    """

    kind: Literal["completed", "failed", "cancelled", "parked", "lost", "store_lost", "stood_down"]
    due_ms: int | None = None
    first_seq: int = 0
    unsaved: list[bytes] = field(default_factory=list[bytes])


class RunTimeout(PyrulaError):
    """An attempt took longer than the workflow's timeout."""

    default_code = "timeout"

    def __init__(self, definition: WorkflowDefinition) -> None:
        super().__init__(
            f"expected an attempt of workflow {definition.name!r} to take at most "
            f"{definition.timeout} seconds, found one that took longer"
        )


class Activation:
    """One attempt. `run` is awaited once; the other methods are called from the same loop.

    `run_id` and `history` (the whole journal) come from the claim, `flags` too.
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
        self._writer = JournalWriter(journal, len(history), env.limits)
        self._unwinding: Literal["cancel", "lost", "stand_down", "parked"] | None = None
        self._in_body = False
        self._task: asyncio.Task[Any] | None = None
        self._due_ms: int | None = None
        self.notice(flags)

    # Called by the worker

    def lock_lost(self) -> None:
        """The token was refused elsewhere (a renewal): unwind, write nothing more."""
        self._unwind("lost")

    def stand_down(self) -> None:
        """Give the run up for somebody else to go on with; unwind the body."""
        self._unwind("stand_down")

    # Called by the context

    def notice(self, flags: Flag) -> None:
        """Take note of what others want of this run."""
        if flags & Flag.CANCEL:
            self._unwind("cancel")

    def parked(self, due_ms: int) -> None:
        """The park was acknowledged; context calls from now on raise `Suspended`."""
        self._unwinding, self._due_ms = "parked", due_ms

    def check(self) -> None:
        """Raise what unwinds the body, if anything does."""
        if self._unwinding is None:
            return
        if self._unwinding == "parked":
            raise Suspended
        if self._unwinding == "lost":
            raise LockLost
        raise asyncio.CancelledError

    def _unwind(self, why: Literal["cancel", "lost", "stand_down"]) -> None:
        if self._unwinding is not None and why != "lost":
            return
        self._unwinding = why
        task = self._task
        # A call from the body's own task unwinds by `check`; only a waiting body needs a push.
        if self._in_body and task is not None and task is not asyncio.current_task():
            task.cancel()

    # The attempt

    async def run(self) -> Outcome:
        """Replay, run the body live, and end in exactly one outcome."""
        self._task = asyncio.current_task()
        try:
            return await self._attempt()
        except (TokenRefused, JournalRolledBack, LockLost):
            return Outcome(kind="lost")
        except (StoreUnavailable, StoreEmptied):
            return self.given_up("store_lost")
        except StreamTooLarge:
            return await self._end(self._overflow, "failed")

    async def _attempt(self) -> Outcome:
        try:
            state = reconstruct_state(map(unpack, self._history))
            context = Context(
                (self._definition.name, self._run_id), state, self._writer, self._env, self
            )
            value = await self._body(context, state)
            if context.unserved:
                raise _ended_early(context)
            raw = encode(value, "the result of the run", self._env.limits.payload_bytes)
        except asyncio.CancelledError:
            return await self._cancelled()
        except Suspended:
            return Outcome(kind="parked", due_ms=self._due_ms)
        except (TokenRefused, JournalRolledBack, StoreUnavailable, StoreEmptied):
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  ends its run and only that
            return await self._failed(error)
        if self._unwinding is not None:
            return await self._swallowed()
        return await self._end(lambda now: [RunComplete(t=now, result=Raw(raw))], "completed")

    async def _body(self, context: Context, state: ReplayState) -> Any:
        init = state.init
        if init is None:
            raise IncompatibleUpgradeError(
                f"expected run {self._run_id} to begin with run:init, found another event; "
                "the journal is damaged"
            )
        params = self._definition.bind(decode_plain(bytes(init.params)))
        self._in_body = True
        bound = asyncio.timeout(self._definition.timeout)
        try:
            async with bound:
                return await self._definition.fn(context, **params)
        except TimeoutError as error:
            if bound.expired():
                raise RunTimeout(self._definition) from error
            raise
        finally:
            self._in_body = False

    async def _swallowed(self) -> Outcome:
        """The body ended normally although it was being unwound."""
        if self._unwinding == "parked":
            return Outcome(kind="parked", due_ms=self._due_ms)
        if self._unwinding == "lost":
            return Outcome(kind="lost")
        return await self._cancelled()

    async def _cancelled(self) -> Outcome:
        task = self._task
        while task is not None and task.uncancel() > 0:
            pass
        if self._unwinding == "cancel":
            return await self._end(_cancel_events, "cancelled")
        if self._unwinding == "lost":
            return Outcome(kind="lost")
        return self.given_up("stood_down")

    async def _failed(self, error: Exception | SystemExit) -> Outcome:
        if self._unwinding is not None:
            return await self._swallowed()
        return await self._end(lambda now: [_run_error(error, now)], "failed")

    async def _end(self, events: Callable[[int], list[Event]], status: Status) -> Outcome:
        crash_point("before_finish")
        await self._uncancelled(self._writer.finish(events(self._env.now_ms()), status))
        crash_point("after_finish")
        kinds: dict[Status, Literal["completed", "failed", "cancelled"]] = {
            "completed": "completed",
            "cancelled": "cancelled",
        }
        return Outcome(kind=kinds.get(status, "failed"))

    async def _uncancelled(self, write: Coroutine[Any, Any, None]) -> None:
        """Finish the terminal write even if a cancel lands on it: it is too late for one."""
        writing = asyncio.ensure_future(write)
        while not writing.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(writing)
        writing.result()

    def _overflow(self, now: int) -> list[Event]:
        limit = self._env.limits.max_events
        message = (
            f"expected a run of at most {limit} events, found one that needs more; "
            "end long runs with ctx.continue_as_new()"
        )
        return [
            StreamOverflow(t=now, limit=limit),
            RunError(t=now, code="stream_too_large", error_type="StreamTooLarge", message=message),
        ]

    def given_up(self, kind: Literal["store_lost", "stood_down"]) -> Outcome:
        """The attempt ends here without an end of the run: what has to go with the requeue."""
        first_seq, unsaved = self._writer.unsaved()
        return Outcome(kind=kind, first_seq=first_seq, unsaved=unsaved)


def _cancel_events(now: int) -> list[Event]:
    message = "the run was cancelled by its caller"
    return [
        RunCancel(t=now),
        RunError(t=now, code="cancelled", error_type="RunCancelledError", message=message),
    ]


def _run_error(error: Exception | SystemExit, now: int) -> RunError:
    if isinstance(error, RemoteError):
        code, kind = error.code, error.type_name
    elif isinstance(error, PyrulaError):
        code, kind = error.code, type(error).__name__
    else:
        code, kind = "workflow_failed", type(error).__name__
    detail = error.detail if isinstance(error, PyrulaError) else {}
    message = error.message if isinstance(error, PyrulaError) else str(error)
    return RunError(
        t=now,
        code=code,
        error_type=kind,
        message=message[:4096].encode("utf-8", "replace").decode() or kind,
        detail=detail or None,
    )


def _ended_early(context: Context) -> IncompatibleUpgradeError:
    record = context.unserved[0]
    return IncompatibleUpgradeError(
        f"expected the body to make call {record.path} ({record.kind} {record.name!r}) as recorded, "
        "found that it ended without; deploy code that makes the same calls in the same order",
        detail={"path": record.path, "recorded": record.name, "asked": None},
    )
