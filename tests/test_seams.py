"""Time, chance, identities, waiting and threads come through `store/seams.py` only.

So a simulation can run a fleet on virtual time. EXCEPTIONS give their reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.sources import ROOT, Module, Use, modules, parse

BEHIND_SEAMS = (
    *("time", "random", "uuid", "secrets", "threading", "_thread"),
    *("asyncio.sleep", "asyncio.to_thread", "os.getpid", "os.urandom", "os.getrandom"),
    *("datetime.date.today", "datetime.datetime.now", "datetime.datetime.today"),
    *("datetime.datetime.utcnow",),
)
# Methods of the loop, whatever it is called. `asyncio.timeout` stays: a simulated loop turns it.
OF_THE_LOOP = {"call_at", "call_later", "run_in_executor", "time"}
# Neither draws, waits, starts anything nor tells the time; `Thread` as a type only, see below.
HARMLESS = (
    *("random.Random", "uuid.UUID"),  # derived from a run's identity, the same at each replay
    *("threading.Lock", "threading.RLock", "threading.Thread", "threading.current_thread"),
    *("threading.get_ident", "threading.get_native_id", "threading.main_thread"),
)
# (file, name) -> why it can't go through a seam
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("runner/engine/crashpoints.py", "os.getpid"): "a crash point kills its own process",
}

GUARDED = ("runner/engine", "runner/worker", "shards")


def reaches_round_a_seam(module: Module, use: Use) -> bool:
    is_bare_module = "." not in use.name
    if is_bare_module or use.is_of(HARMLESS):
        return False
    return use.is_of(BEHIND_SEAMS) and (module.where, use.name) not in EXCEPTIONS


@pytest.mark.parametrize("folder", GUARDED)
def test_nothing_reaches_round_a_seam(folder: str) -> None:
    found = [
        f"{module.where}:{use.line} uses {use.name}"
        for module in modules(folder)
        for use in module.uses()
        if reaches_round_a_seam(module, use)
    ]
    assert found == []


def loop_calls(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in OF_THE_LOOP:
            yield f"{module.where}:{node.lineno} calls {ast.unparse(node.func)}"


@pytest.mark.parametrize("folder", GUARDED)
def test_nothing_asks_the_loop_for_time_or_threads(folder: str) -> None:
    assert [call for module in modules(folder) for call in loop_calls(module)] == []


@pytest.mark.parametrize("folder", GUARDED)
def test_nothing_starts_a_thread_but_the_spawner(folder: str) -> None:
    calls = [(m.where, use.line) for m in modules(folder) for use in m.calls("threading.Thread")]
    assert calls == []


@pytest.mark.parametrize(
    ("statement", "refused"),
    [
        ("import time\ntime.monotonic()", True),
        ("from time import monotonic", True),
        ("import datetime as d\nd.datetime.now()", True),
        ("from datetime import datetime\ndatetime.now()", True),
        ("from datetime import datetime\ndatetime.fromtimestamp(0)", False),
        ("import asyncio\nasyncio.sleep(1)", True),
        ("import asyncio\nasyncio.timeout(1)", False),
        ("import os\nos.getpid()", True),
        ("import os\nos.environ", False),
        ("import threading\nlock = threading.Lock()", False),
        ("import threading\nthreading.Event().wait(1)", True),
        ("def f(rng): return rng.random()", False),
    ],
)
def test_these_are_refused(statement: str, refused: bool) -> None:
    module = parse(statement, ROOT / "shards" / "lease.py")
    assert any(reaches_round_a_seam(module, use) for use in module.uses()) is refused


def test_the_loop_s_own_clock_is_refused() -> None:
    text = "import asyncio\nasyncio.get_running_loop().time()\nasyncio.timeout(1)"
    assert len(list(loop_calls(parse(text)))) == 1


def test_every_exception_is_still_needed() -> None:
    used = {(m.where, use.name) for m in modules(*GUARDED) for use in m.uses()}
    assert set(EXCEPTIONS) <= used
