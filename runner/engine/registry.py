"""Which workflows and steps exist in this process.

Owns `@workflow`, `@step` and the table of registered names. Refuses two functions under one name,
and names that could not be part of a key. Knows nothing of stores or workers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar, overload

import msgspec

from pyrula.workflows.engine.payload import convert, hints_of
from pyrula.workflows.engine.retry import Retry
from pyrula.workflows.stores.errors import ConfigurationError, InvalidInputError
from pyrula.workflows.stores.names import check_workflow_name

Body = Callable[..., Coroutine[Any, Any, Any]]
BodyT = TypeVar("BodyT", bound=Body)
FnT = TypeVar("FnT", bound=Callable[..., Any])


@dataclass(frozen=True)
class WorkflowDefinition:
    """A registered workflow: its name, its body, and how long one attempt may take (seconds)."""

    name: str
    fn: Body
    timeout: float | None = None

    def bind(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments for the body, converted to their annotations.

        Raises `InvalidInputError` `invalid_params` naming the parameter.
        """
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
        return {name: self._convert(name, value) for name, value in params.items()}

    def _convert(self, name: str, value: Any) -> Any:
        try:
            return convert(value, self._hints.get(name, Any))
        except msgspec.ValidationError as error:
            raise InvalidInputError(
                f"expected parameter {name!r} of workflow {self.name!r} to match its annotation, "
                f"found a value that doesn't ({error})",
                code="invalid_params",
            ) from error

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return hints_of(self.fn)

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


def step(
    *,
    name: str | None = None,
    timeout: float | timedelta | None = None,
    retry: Retry | None = None,
) -> Callable[[FnT], FnT]:
    """Give a function its step name, timeout and retry policy; it stays callable as it was.

    >>> @step(name="charge", timeout=30)
    ... async def charge(order_id: str) -> str:
    ...     return f"ch_{order_id}"
    """

    def mark(fn: FnT) -> FnT:
        options = StepOptions(name or fn.__name__, seconds(timeout, "timeout"), retry)
        fn.__pyrula_step__ = options  # type: ignore[attr-defined]
        return fn

    return mark


def step_options(fn: Callable[..., Any]) -> StepOptions | None:
    """What `@step` said of `fn`, if it did."""
    return getattr(fn, "__pyrula_step__", None)


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
    found = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not found > 0:
        raise InvalidInputError(
            f"expected {what} to be more than 0 seconds, found {value!r}", code="invalid_duration"
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
    before = _workflows.get(definition.name)
    if before is not None and _home(before) != _home(definition):
        raise ConfigurationError(
            f"expected one workflow named {definition.name!r}, found two: {_home(before)} and "
            f"{_home(definition)}; give one of them another name=",
            code="workflow_name_taken",
        )
    _workflows[definition.name] = definition


def _home(definition: WorkflowDefinition) -> str:
    return f"{definition.fn.__module__}.{definition.fn.__qualname__}"
