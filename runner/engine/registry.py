"""Which workflows and steps exist in this process.

Owns `@workflow`, `@step` and the table of registered names. Refuses two functions under one name,
and names that could not be part of a key. Knows nothing of stores or workers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar, overload

import msgspec

from pyrula.workflows.engine.payload import (
    Decode,
    decode_plain,
    decoder_of_type,
    function_of,
    hints_of,
    restore,
)
from pyrula.workflows.engine.retry import Retry
from pyrula.workflows.stores.errors import ConfigurationError, InvalidInputError, PayloadError
from pyrula.workflows.stores.names import check_workflow_name

Body = Callable[..., Coroutine[Any, Any, Any]]
BodyT = TypeVar("BodyT", bound=Body)
FnT = TypeVar("FnT", bound=Callable[..., Any])


_decode_params = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(frozen=True)
class WorkflowDefinition:
    """A registered workflow: its name, its body, and how long one attempt may take (seconds)."""

    name: str
    fn: Body
    timeout: float | None = None

    def bind(self, raw: bytes) -> dict[str, Any]:
        """Keyword arguments for the body from a JSON object, restored to their annotations.

        Raises `InvalidInputError` `invalid_params` naming the parameter.
        """
        params = _decode_params(raw)
        accepted, required, takes_any = self._parameters
        missing = [name for name in required if name not in params]
        unknown = [] if takes_any else [name for name in params if name not in accepted]
        if missing or unknown:
            found = ", ".join(sorted(params)) or "none"
            raise InvalidInputError(
                f"expected the parameters of workflow {self.name!r} "
                f"({', '.join(accepted) or 'none'}), found {found}"
                + (f"; missing: {', '.join(missing)}" if missing else "")
                + (f"; unknown: {', '.join(unknown)}" if unknown else ""),
                code="invalid_params",
            )
        return {name: self._restored(name, bytes(value)) for name, value in params.items()}

    def _restored(self, name: str, raw: bytes) -> Any:
        what = f"parameter {name!r} of workflow {self.name!r}"
        try:
            return restore(self._decoders.get(name, decode_plain), raw, what)
        except PayloadError as error:
            raise InvalidInputError(error.message, code="invalid_params") from error

    @cached_property
    def _decoders(self) -> dict[str, Decode]:
        hints = hints_of(self.fn) if self.fn.__annotations__ else {}
        return {name: decoder_of_type(hint) for name, hint in hints.items()}

    @cached_property
    def _parameters(self) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
        own = list(inspect.signature(self.fn).parameters.values())[1:]
        named = [p for p in own if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}]
        required = tuple(p.name for p in named if p.default is p.empty)
        return (
            tuple(p.name for p in named),
            required,
            any(p.kind is p.VAR_KEYWORD for p in own),
        )


@dataclass(frozen=True)
class StepOptions:
    """What `@step` fixes for every call of the function."""

    name: str
    timeout: float | None = None
    retry: Retry | None = None


_LONGEST_S = 100 * 365 * 86_400
_workflows: dict[str, WorkflowDefinition] = {}


@overload
def workflow(fn: BodyT, /) -> BodyT: ...
@overload
def workflow(
    *, name: str | None = None, timeout: float | timedelta | None = None
) -> Callable[[BodyT], BodyT]: ...
def workflow(
    fn: BodyT | None = None,
    /,
    *,
    name: str | None = None,
    timeout: float | timedelta | None = None,
) -> BodyT | Callable[[BodyT], BodyT]:
    """Register an async function `(ctx, **params)` as a workflow; the function is unchanged.

    `timeout` (seconds or timedelta) bounds one attempt on a worker, parked time excluded. Raises
    `ConfigurationError` for a function that isn't async or a name that is taken.

    >>> @workflow(name="greet")
    ... async def greet(ctx, who: str) -> str:
    ...     return await ctx.step("compose", lambda: f"hello {who}")
    """

    def register(body: BodyT) -> BodyT:
        _register(WorkflowDefinition(name or body.__name__, body, seconds(timeout, "timeout")))
        return body

    return register(fn) if fn is not None else register


@overload
def step(fn: FnT, /) -> FnT: ...
@overload
def step(
    *,
    name: str | None = None,
    timeout: float | timedelta | None = None,
    retry: Retry | None = None,
) -> Callable[[FnT], FnT]: ...
def step(
    fn: FnT | None = None,
    /,
    *,
    name: str | None = None,
    timeout: float | timedelta | None = None,
    retry: Retry | None = None,
) -> FnT | Callable[[FnT], FnT]:
    """Give a function its step name, timeout and retry policy; it stays callable as it was.

    `timeout` (seconds or timedelta) bounds one try. Raises `InvalidInputError` `invalid_duration`.

    >>> @step(name="charge", timeout=30)
    ... async def charge(order_id: str) -> str:
    ...     return f"ch_{order_id}"
    """

    def mark(marked: FnT) -> FnT:
        options = StepOptions(name or name_of(marked), seconds(timeout, "timeout"), retry)
        marked.__pyrula_step__ = options  # type: ignore[attr-defined]
        return marked

    return mark(fn) if fn is not None else mark


def step_options(fn: Callable[..., Any]) -> StepOptions | None:
    """What `@step` said of `fn`, if it did."""
    options = getattr(fn, "__pyrula_step__", None)
    return options if options is not None else getattr(function_of(fn), "__pyrula_step__", None)


def name_of(fn: Callable[..., Any]) -> str:
    """What a callable is called, a partial as the function it wraps."""
    for candidate in (fn, function_of(fn), type(fn)):
        name = getattr(candidate, "__name__", None)
        if isinstance(name, str):
            return name
    return "step"


def definition_of(target: Any) -> WorkflowDefinition:
    """The definition of a decorated function or a registered name.

    Raises `ConfigurationError` `not_a_workflow`.
    """
    found = _workflows.get(target) if isinstance(target, str) else None
    for candidate in () if isinstance(target, str) else _workflows.values():
        if candidate.fn is target:
            found = candidate
    if found is None:
        shown = target if isinstance(target, str) else getattr(target, "__qualname__", repr(target))
        raise ConfigurationError(
            f"expected a workflow, found {shown!r}; decorate the function with @workflow",
            code="not_a_workflow",
        )
    return found


def registered() -> dict[str, WorkflowDefinition]:
    """All workflows that were imported, by name."""
    return dict(_workflows)


def seconds(value: float | timedelta | None, what: str) -> float | None:
    """`value` as seconds > 0. Raises `InvalidInputError` `invalid_duration`."""
    if value is None:
        return None
    found = duration(value, what)
    if not found > 0:
        raise InvalidInputError(
            f"expected {what} to be more than 0 seconds, found {value!r}", code="invalid_duration"
        )
    return found


def duration(value: float | timedelta, what: str) -> float:
    """`value` as seconds, from 0 to 100 years. Raises `InvalidInputError` `invalid_duration`."""
    given: Any = value.total_seconds() if isinstance(value, timedelta) else value
    found = float(given) if isinstance(given, int | float) else -1.0
    if not 0 <= found <= _LONGEST_S:
        raise InvalidInputError(
            f"expected {what} to be seconds or a timedelta, from 0 to 100 years, found {value!r}",
            code="invalid_duration",
        )
    return found


def _register(definition: WorkflowDefinition) -> None:
    check_workflow_name(definition.name)
    if not inspect.iscoroutinefunction(definition.fn):
        raise ConfigurationError(
            f"expected workflow {definition.name!r} to be an async function, found "
            f"{definition.fn!r}; write `async def`",
            code="not_async",
        )
    if not _takes_context(definition.fn):
        raise ConfigurationError(
            f"expected workflow {definition.name!r} to take its context as first parameter, found "
            f"{_home(definition)}{inspect.signature(definition.fn)}; add `ctx` in front",
            code="no_context",
        )
    before = _workflows.get(definition.name)
    if before is not None and _home(before) != _home(definition):
        raise ConfigurationError(
            f"expected one workflow named {definition.name!r}, found two: {_home(before)} and "
            f"{_home(definition)}; give one of them another name=",
            code="workflow_name_taken",
        )
    _workflows[definition.name] = definition


def _takes_context(fn: Body) -> bool:
    first = next(iter(inspect.signature(fn).parameters.values()), None)
    positional = {
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    }
    return first is not None and first.kind in positional


def _home(definition: WorkflowDefinition) -> str:
    return f"{definition.fn.__module__}.{definition.fn.__qualname__}"
