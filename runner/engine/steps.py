"""One step, in two public halves around the user's function.

Owns `begin` (serve the record, or journal `step:pending`) and the outcome (`complete`, `fail`), so
that hooks and tests can drive a step without a context. Refuses to know why a step is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import CO_COROUTINE, isawaitable
from typing import Any

from pyrula.workflows.engine.crashpoints import crash_point
from pyrula.workflows.engine.env import Env
from pyrula.workflows.engine.identity import NO_INPUTS, input_hash
from pyrula.workflows.engine.payload import Decode, decoder_for, encode, restore
from pyrula.workflows.engine.replay import CallRecord
from pyrula.workflows.engine.retry import NO_RETRY, Retry
from pyrula.workflows.engine.writer import JournalWriter
from pyrula.workflows.stores.errors import PyrulaError
from pyrula.workflows.stores.events import ErrorRecord, Raw, StepDone, StepError, StepPending


class RemoteError(PyrulaError):
    """A step failed for good; the same on the first pass and on replay.

    `type_name` is the original exception's name, shown and never imported; on the first pass the
    original is the `__cause__`.
    """

    default_code = "step_failed"

    def __init__(self, record: ErrorRecord, step: str) -> None:
        super().__init__(record.message, code=record.code, detail={"step": step})
        self.type_name = record.type
        self.step = step


@dataclass(slots=True)  # not frozen: that makes building one, on the hot path, three times slower
class StepCall:
    """A step as the body asked for it; `timeout` in seconds. Read only."""

    path: str
    name: str
    fn: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    timeout: float | None
    retry: Retry

    @property
    def what(self) -> str:
        """How errors name the step."""
        return f"step {self.name!r}"

    @property
    def decode(self) -> Decode:
        """How the result is restored to its declared type."""
        return decoder_for(self.fn)

    def inputs(self, limit: int) -> str:
        """The hash of the inputs. Raises `PayloadError` naming the argument."""
        if not self.args and not self.kwargs:
            return NO_INPUTS
        given = [list(self.args), dict(self.kwargs)]
        return input_hash(encode(given, f"the arguments of {self.what}", limit))


class Steps:
    """Runs steps of one attempt: journals before, calls, journals after."""

    def __init__(self, writer: JournalWriter, env: Env, run_id: str) -> None:
        self._writer = writer
        self._env = env
        self._run_id = run_id

    def begin(self, call: StepCall) -> None:
        """Journal `step:pending`; it is with the kernel when this returns."""
        self._writer.note(
            StepPending(
                t=self._env.now_ms(),
                p=call.path,
                n=call.name,
                h=call.inputs(self._env.limits.payload_bytes),
            )
        )
        self._env.attribution.step_entered(call.path, call.name, call.timeout)
        crash_point("after_pending")

    async def call(self, call: StepCall) -> Any:
        """Run the user's function: on the loop if async, in the pool if not."""
        if call.timeout is None:
            return await self._invoke(call)
        async with asyncio.timeout(call.timeout):
            return await self._invoke(call)

    async def complete(self, call: StepCall, value: Any) -> tuple[Any, int]:
        """Journal the result; gives what a replay would, decode(encode(value)), and store ms.

        Raises `PayloadError` when the result can't be journaled.
        """
        crash_point("after_step_body")
        raw = encode(value, f"the result of {call.what}", self._env.limits.payload_bytes)
        restored = restore(call.decode, raw, f"the result of {call.what}")
        event = StepDone(t=self._env.now_ms(), p=call.path, r=Raw(raw))
        await self._writer.commit(event)
        self._env.attribution.step_left()
        crash_point("after_done")
        return restored, event.t

    async def fail(self, call: StepCall, error: Exception, tries: int) -> tuple[RemoteError, int]:
        """Journal the final failure of a step and give back what the body sees."""
        record = ErrorRecord(
            type=type(error).__name__, message=_text(error), code=_code(error)
        )
        event = StepError(t=self._env.now_ms(), final=True, p=call.path, error=record, tries=tries)
        await self._writer.commit(event)
        self._env.attribution.step_left()
        return RemoteError(record, call.name), event.t

    def note_try(self, call: StepCall, error: Exception, tries: int, retry_at: int | None) -> None:
        """Journal a try that will be repeated, at store time `retry_at` if the run parks."""
        record = ErrorRecord(type=type(error).__name__, message=_text(error), code=_code(error))
        now = self._env.now_ms()
        self._writer.note(
            StepError(t=now, p=call.path, error=record, tries=tries, retry_at=retry_at)
        )
        self._env.attribution.step_left()

    async def _invoke(self, call: StepCall) -> Any:
        if _is_async(call.fn):
            return await call.fn(*call.args, **call.kwargs)
        value = await self._env.call_sync(call.fn, call.args, call.kwargs)
        return await value if isawaitable(value) else value


def replayed(call: StepCall, record: CallRecord) -> Any:
    """The recorded outcome of a step: its result, or its `RemoteError` raised."""
    if record.error is not None:
        raise RemoteError(record.error, call.name)
    raw = bytes(record.result) if record.result is not None else b"null"
    return restore(call.decode, raw, f"the recorded result of {call.what}")


def step_call(
    path: str,
    target: str | Callable[..., Any],
    args: tuple[Any, ...],
    options: tuple[Mapping[str, Any] | None, float | None, Retry | None],
    declared: tuple[str, float | None, Retry | None] | None,
) -> StepCall:
    """A `StepCall` from what the body wrote; call-site options win over `@step`'s."""
    kwargs, timeout, retry = options
    fn: Callable[..., Any] = args[0] if isinstance(target, str) else target
    rest = args[1:] if isinstance(target, str) else args
    fallback = getattr(fn, "__name__", type(fn).__name__)
    own_name, own_timeout, own_retry = declared or (fallback, None, None)
    return StepCall(
        path,
        target if isinstance(target, str) else own_name,
        fn,
        rest,
        kwargs or {},
        timeout if timeout is not None else own_timeout,
        retry or own_retry or NO_RETRY,
    )


def _is_async(fn: Callable[..., Any]) -> bool:
    code = getattr(fn, "__code__", None)
    if code is None:  # a partial, a bound callable object
        code = getattr(getattr(fn, "func", None), "__code__", None) or getattr(
            getattr(type(fn), "__call__", None), "__code__", None
        )
    return code is not None and bool(code.co_flags & CO_COROUTINE)


def _text(error: Exception) -> str:
    text = error.message if isinstance(error, PyrulaError) else str(error)
    return text[:4096] or type(error).__name__


def _code(error: Exception) -> str | None:
    return error.code if isinstance(error, PyrulaError) else None


