"""One step, in public halves around the user's function.

Owns `begin` (journal `step:pending`), `call`, and the outcome (`complete`, `fail`), so that hooks
and tests can drive a step without a context. Refuses to know why a step is called or whether it is
tried again: the context does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import CO_COROUTINE, isawaitable
from typing import Any

from pyrula.workflows.engine.crashpoints import crash_point
from pyrula.workflows.engine.env import Env
from pyrula.workflows.engine.failures import RemoteError, error_record
from pyrula.workflows.engine.identity import NO_INPUTS, input_hash
from pyrula.workflows.engine.payload import (
    decoder_for,
    encode,
    encode_ordered,
    function_of,
    restore,
)
from pyrula.workflows.engine.replay import CallRecord
from pyrula.workflows.engine.retry import Retry
from pyrula.workflows.engine.writer import JournalWriter
from pyrula.workflows.stores.events import Raw, StepDone, StepError, StepPending


@dataclass(slots=True)  # not frozen: that makes building one, on the hot path, three times slower
class StepCall:
    """A step as the body asked for it; `timeout` in seconds, `inputs` their hash. Read only."""

    path: str
    name: str
    fn: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    timeout: float | None
    retry: Retry
    inputs: str

    @property
    def what(self) -> str:
        """How errors name the step."""
        return f"step {self.name!r}"


class Steps:
    """Runs steps of one attempt: journals before, calls, journals after."""

    def __init__(self, writer: JournalWriter, env: Env) -> None:
        self._writer = writer
        self._env = env

    def begin(self, call: StepCall) -> None:
        """Journal `step:pending`; it is with the kernel when this returns."""
        self._writer.note(
            StepPending(t=self._env.now_ms(), p=call.path, n=call.name, h=call.inputs)
        )
        self._env.attribution.step_entered(call.path, call.name, call.timeout)
        crash_point("after_pending")

    async def call(self, call: StepCall) -> Any:
        """Run the user's function: on the loop if async, in the pool if not."""
        try:
            if call.timeout is None:
                return await self._invoke(call)
            return await self._within(call, call.timeout)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeError("the step raised CancelledError, though nobody cancelled it") from (
                error
            )

    async def complete(self, call: StepCall, value: Any) -> tuple[Any, int]:
        """Journal the result; gives what a replay would, decode(encode(value)), and store ms.

        Raises `PayloadError` when the result can't be journaled.
        """
        crash_point("after_step_body")
        what = f"the result of {call.what}"
        raw = encode(value, what, self._env.limits.payload_bytes)
        restored = restore(decoder_for(call.fn), raw, what)
        event = StepDone(t=self._env.now_ms(), p=call.path, r=Raw(raw))
        crash_point("before_done")
        await self._writer.commit(event)
        crash_point("after_done")
        return restored, event.t

    async def fail(
        self, call: StepCall, error: BaseException, tries: int
    ) -> tuple[RemoteError, int]:
        """Journal the final failure of a step; gives what the body sees, and store ms."""
        record = error_record(error)
        event = StepError(t=self._env.now_ms(), final=True, p=call.path, error=record, tries=tries)
        await self._writer.commit(event)
        return RemoteError(record, call.name), event.t

    def left(self) -> None:
        """The step (or this try of it) is over."""
        self._env.attribution.step_left()

    def note_try(
        self, call: StepCall, error: BaseException, tries: int, retry_at: int | None
    ) -> None:
        """Journal a try that will be repeated, at store time `retry_at` if the run parks."""
        self._writer.note(
            StepError(
                t=self._env.now_ms(),
                p=call.path,
                error=error_record(error),
                tries=tries,
                retry_at=retry_at,
            )
        )

    async def _invoke(self, call: StepCall) -> Any:
        if _is_async(call.fn):
            return await call.fn(*call.args, **call.kwargs)
        value = await self._env.call_sync(call.fn, call.args, call.kwargs)
        return await value if isawaitable(value) else value

    async def _within(self, call: StepCall, seconds: float) -> Any:
        bound = asyncio.timeout(seconds)
        try:
            async with bound:
                return await self._invoke(call)
        except TimeoutError as error:
            if not bound.expired():
                raise
            raise TimeoutError(
                f"expected {call.what} to take at most {seconds} seconds, found one that took "
                "longer"
            ) from error


def inputs_of(what: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None, limit: int) -> str:
    """The hash of a step's arguments, the same in every process.

    Raises `PayloadError` naming the place among them.
    """
    if not args and not kwargs:
        return NO_INPUTS
    raw = encode_ordered(args, f"the arguments of {what}", limit)
    if kwargs:
        raw += encode_ordered(kwargs, f"the keyword arguments of {what}", limit)
    return input_hash(raw)


def replayed(call: StepCall, record: CallRecord) -> Any:
    """The recorded outcome of a step: its result, or its `RemoteError` raised.

    Raises `PayloadError` when the result no longer fits the declared type.
    """
    if record.error is not None:
        raise RemoteError(record.error, call.name)
    raw = bytes(record.result) if record.result is not None else b"null"
    return restore(decoder_for(call.fn), raw, f"the recorded result of {call.what}")


def _is_async(fn: Callable[..., Any]) -> bool:
    code = getattr(fn, "__code__", None) or getattr(function_of(fn), "__code__", None)
    return code is not None and bool(code.co_flags & CO_COROUTINE)
