"""Fixtures and the running of async tests.

An `async def test_…` runs on a fresh loop (`PYRULA_TEST_LOOP=uvloop|asyncio`, uvloop by default),
bounded by 30 s or `@pytest.mark.bound(seconds)`. It fails if it leaves a task behind or if the loop
was told of an exception that nobody handled.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from tests.support.valkey import ValkeyServer

BOUND_S = 30.0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "bound(seconds): how long an async test may take")


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop of the kind that this run of the suite is for."""
    if os.environ.get("PYRULA_TEST_LOOP", "uvloop") == "asyncio":
        return asyncio.SelectorEventLoop()
    return uvloop.new_event_loop()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test to its end, within its bound."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    marker = pyfuncitem.get_closest_marker("bound")
    bound = float(marker.args[0]) if marker else BOUND_S
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    unhandled: list[dict[str, Any]] = []

    async def bounded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: unhandled.append(told))
        async with asyncio.timeout(bound):
            await pyfuncitem.obj(**arguments)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            # What ends by itself at once (a connection being torn down) was not left behind.
            _, left = await asyncio.wait(left, timeout=1.0)
        assert not left, f"the test left tasks behind: {left}"

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(bounded())
    assert not unhandled, f"the loop was told of unhandled exceptions: {unhandled}"
    return True


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """The server that the tests of one xdist worker share; write only under `namespace`."""
    with ValkeyServer(tcp=True, aof="everysec") as server:
        yield server


@pytest.fixture
def valkey_url(valkey: ValkeyServer) -> str:
    """The URL of the shared server."""
    return valkey.url


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test uses."""
    return f"t{secrets.token_hex(6)}"


@pytest.fixture
def private_valkey() -> Iterator[Callable[..., ValkeyServer]]:
    """Make servers of one's own to kill, pause and fill: `private_valkey(aof="always")`."""
    servers: list[ValkeyServer] = []

    def make(**options: Any) -> ValkeyServer:
        servers.append(ValkeyServer(**options))
        return servers[-1].start()

    yield make
    for server in servers:
        server.close()
