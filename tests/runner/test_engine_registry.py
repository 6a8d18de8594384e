"""Workflows and steps by name, and what a workflow's parameters must be."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import Any

import pytest

from pyrula.workflows.engine import registry
from pyrula.workflows.engine.context import Context
from pyrula.workflows.engine.registry import (
    WorkflowDefinition,
    definition_of,
    registered,
    step,
    step_options,
    workflow,
)
from pyrula.workflows.stores.errors import ConfigurationError, InvalidInputError, PyrulaError
from tests.support.attempts import failed


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_workflows", {})


def test_a_workflow_is_registered_and_stays_the_function_it_was() -> None:
    async def greet(ctx: Context, who: str) -> str:
        return who

    assert workflow(greet) is greet
    assert workflow(name="other", timeout=dt.timedelta(minutes=1))(greet) is greet
    assert set(registered()) == {"greet", "other"}
    assert definition_of("other").timeout == 60.0
    assert definition_of(greet).fn is greet


def test_one_name_is_one_workflow() -> None:
    async def first(ctx: Context) -> None: ...

    async def second(ctx: Context) -> None: ...

    workflow(name="same")(first)
    workflow(name="same")(first)  # imported again
    with pytest.raises(ConfigurationError) as caught:
        workflow(name="same")(second)
    assert caught.value.code == "workflow_name_taken"
    assert "first" in caught.value.message
    assert "second" in caught.value.message


def not_async(ctx: Context) -> None: ...


async def no_context() -> None: ...


async def only_keywords(*, ctx: Context) -> None: ...


@pytest.mark.parametrize(
    ("fn", "name", "code"),
    [
        (not_async, "a", "not_async"),
        (no_context, "a", "no_context"),
        (only_keywords, "a", "no_context"),
        (no_context, "a b", "invalid_name"),
        (no_context, "a:b", "invalid_name"),
        (no_context, "x" * 10_000, "invalid_name"),
    ],
)
def test_what_cannot_be_a_workflow_is_refused(fn: Any, name: str, code: str) -> None:
    with pytest.raises(PyrulaError) as caught:
        workflow(name=name)(fn)
    assert code in {caught.value.code, "invalid_name"}
    assert registered() == {}


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), dt.timedelta(0), "5"])
def test_a_timeout_is_a_duration(timeout: Any) -> None:
    for decorate in (workflow, step):
        with pytest.raises(InvalidInputError) as caught:
            decorate(timeout=timeout)(no_context)
        assert caught.value.code == "invalid_duration"


@pytest.mark.parametrize("target", ["nobody", no_context, 5, None])
def test_what_is_no_workflow_is_named(target: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        definition_of(target)
    assert caught.value.code == "not_a_workflow"


def test_a_step_is_marked_with_or_without_options() -> None:
    @step
    def bare() -> None: ...

    @step(name="named", timeout=5)
    def named() -> None: ...

    bare_options, named_options = step_options(bare), step_options(named)
    assert bare_options is not None
    assert named_options is not None
    assert (bare_options.name, bare_options.timeout) == ("bare", None)
    assert (named_options.name, named_options.timeout) == ("named", 5.0)
    assert step_options(not_async) is None


# Parameters


@dataclasses.dataclass
class Order:
    number: int
    at: dt.datetime


async def takes(
    ctx: Context, order: Order, counts: dict[int, int], note: str | None = None
) -> None: ...


async def takes_anything(ctx: Context, **params: Any) -> None: ...


GOOD = {"order": {"number": 1, "at": "2026-01-01T00:00:00Z"}, "counts": {"5": 6}}


def test_parameters_are_restored_to_their_types() -> None:
    bound = WorkflowDefinition("w", takes).bind(json.dumps(GOOD).encode())
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    assert bound == {"order": Order(1, at), "counts": {5: 6}}
    assert WorkflowDefinition("w", takes_anything).bind(b'{"a":[1]}') == {"a": [1]}


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({}, "missing: order, counts"),
        ({**GOOD, "more": 1}, "unknown: more"),
        ({**GOOD, "ctx": 1}, "unknown: ctx"),
        ({**GOOD, "order": {"number": "1"}}, "parameter 'order'"),
        ({**GOOD, "counts": {"x": 1}}, "parameter 'counts'"),
        ({**GOOD, "note": 5}, "parameter 'note'"),
    ],
)
async def test_wrong_parameters_end_the_run_before_its_body(
    params: dict[str, Any], named: str
) -> None:
    error = await failed(takes, params=params)
    assert error.code == "invalid_params"
    assert named in error.message
