"""Plays every test of this folder on each store that there is."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Generator
from typing import Any

import pytest

from tests.conformance.stage import Backend, MemoryBackend, Stage, ValkeyBackend


def _backends() -> list[str]:
    # Until its module is written, the server's store has nothing to be tested.
    there = importlib.util.find_spec("pyrula.workflows.stores.valkey.store") is not None
    return ["memory", "valkey"] if there else ["memory"]


@pytest.fixture(params=_backends())
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "memory":
        return MemoryBackend()
    return ValkeyBackend(
        request.getfixturevalue("valkey_url"), request.getfixturevalue("namespace")
    )


@pytest.fixture
def stage(backend: Backend) -> Stage:
    return Stage(backend)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, bool | None, bool | None]:
    """Open the stage of a test around it, on the loop that the test runs on."""
    stage = pyfuncitem.funcargs.get("stage")
    if isinstance(stage, Stage):
        test = pyfuncitem.obj

        @functools.wraps(test)
        async def staged(**arguments: Any) -> None:
            async with stage:
                await test(**arguments)

        pyfuncitem.obj = staged
    return (yield)
