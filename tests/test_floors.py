"""Imports never run up: supervisor and store are leaves, shards on store, runner on all three."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.sources import ROOT, SHIPPED, Module, modules, parse

WORKFLOWS = "pyrula.workflows"
STORES = "pyrula.workflows.stores"
SHARDS = "pyrula.workflows.shards"
SUPERVISOR = "pyrula.supervisor"

# What everybody shares: events, errors, protocol. It stands below the stores that implement it.
VOCABULARY = tuple(f"{STORES}.{noun}" for noun in ("base", "errors", "events", "names", "seams"))
HASHING = f"{SHARDS}.hashing"
SPOKEN_BY_WORKERS = tuple(
    f"{SUPERVISOR}.{noun}" for noun in ("certificate", "exits", "link", "page")
)
# Floors inside the runner, from the ground. A name that isn't here stands with the client.
RUNNER_FLOORS = {"engine": 0, "client": 1, "worker": 1, "cli": 2, "http": 2}

IO = (
    *("aiohttp", "concurrent", "hiredis", "http", "httpx", "io", "multiprocessing", "psutil"),
    *("psycopg", "redis", "select", "selectors", "socket", "sqlite3", "ssl", "subprocess"),
    *("urllib", "uvloop", "builtins.open", "os.open", "os.read", "os.write", "pathlib", "shutil"),
    *("tempfile", "asyncio.to_thread"),
    *("asyncio.open_connection", "asyncio.open_unix_connection", "asyncio.start_server"),
    *("asyncio.start_unix_server", "asyncio.create_subprocess_exec", "asyncio.Protocol"),
    *("asyncio.create_subprocess_shell", "asyncio.StreamReader", "asyncio.StreamWriter"),
)
# The parent forks: a loop, a thread or a store connection would be copied half alive.
NOT_IN_THE_PARENT = (
    *("_thread", "asyncio", "concurrent", "hiredis", "multiprocessing", "redis", "threading"),
    "uvloop",
)


def below(name: str, *packages: str) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


def floor_in_runner(name: str) -> int:
    part = name.removeprefix(f"{WORKFLOWS}.").partition(".")[0]
    return RUNNER_FLOORS.get(part, 1)


def may_import(importer: str, imported: str) -> bool:
    """Whether the module `importer` stands above `imported`, both ours."""
    if below(importer, SUPERVISOR):
        return below(imported, SUPERVISOR)
    if below(importer, *VOCABULARY):
        return below(imported, *VOCABULARY)
    if below(importer, STORES):
        return below(imported, STORES)
    if below(importer, SHARDS):
        return below(imported, SHARDS, *VOCABULARY)
    return may_import_in_runner(importer, imported)


def may_import_in_runner(importer: str, imported: str) -> bool:
    floor = floor_in_runner(importer)
    if below(imported, SUPERVISOR):
        return floor == RUNNER_FLOORS["cli"] or below(imported, *SPOKEN_BY_WORKERS)
    if below(imported, SHARDS, STORES):
        return floor > RUNNER_FLOORS["engine"] or below(imported, HASHING, *VOCABULARY)
    names_the_facade = imported.count(".") == WORKFLOWS.count(".") + 1 and not is_module(imported)
    return not names_the_facade and floor_in_runner(imported) <= floor


def is_module(name: str) -> bool:
    path = ROOT / "runner" / name.removeprefix(f"{WORKFLOWS}.")
    return path.with_suffix(".py").exists() or path.is_dir()


def wrong_imports(module: Module) -> list[str]:
    if module.name == WORKFLOWS:
        return []  # the facade names the homes of everything public
    return [
        f"{module.where}:{use.line} imports {use.name}"
        for use in module.imports()
        if below(use.name, "pyrula") and not may_import(module.name, use.name)
    ]


def test_no_import_runs_up() -> None:
    assert [wrong for module in modules(*SHIPPED) for wrong in wrong_imports(module)] == []


@pytest.mark.parametrize(
    ("importer", "statement", "allowed"),
    [
        ("store/base.py", "from pyrula.workflows.stores.errors import PyrulaError", True),
        ("store/base.py", "from pyrula.workflows.stores.valkey import store", False),
        ("store/memory.py", "from pyrula.workflows.shards.hashing import shard_of", False),
        ("store/memory.py", "from .base import Store", True),
        ("store/memory.py", "from .. import engine", False),
        ("shards/lease.py", "import pyrula.workflows.stores.base", True),
        ("shards/lease.py", "from pyrula.workflows.stores.memory import MemoryStore", False),
        ("supervisor/pool.py", "from pyrula.workflows.stores.errors import PyrulaError", False),
        ("supervisor/pool.py", "from pyrula.supervisor import page", True),
        ("runner/engine/replay.py", "from pyrula.workflows.stores.events import Event", True),
        ("runner/engine/replay.py", "from pyrula.workflows.stores.memory import X", False),
        ("runner/engine/replay.py", "from pyrula.workflows.client import WorkflowClient", False),
        ("runner/worker/claiming.py", "from pyrula.workflows.engine import env", True),
        ("runner/worker/claiming.py", "from pyrula.workflows.cli import main", False),
        ("runner/worker/claiming.py", "from pyrula.workflows import WorkflowClient", False),
        ("runner/worker/child.py", "from pyrula.supervisor.page import Page", True),
        ("runner/worker/child.py", "from pyrula.supervisor.pool import Pool", False),
        ("runner/cli/runs.py", "from pyrula.supervisor.embedded import running", True),
    ],
)
def test_the_floors_are_these(importer: str, statement: str, allowed: bool) -> None:
    assert (wrong_imports(parse(statement, ROOT / importer)) == []) is allowed


@pytest.mark.parametrize("folder", ["runner/engine", "shards"])
def test_the_pure_floors_do_no_io(folder: str) -> None:
    found = [
        f"{module.where}:{use.line} uses {use.name}"
        for module in modules(folder)
        for use in module.uses()
        if use.is_of(IO)
    ]
    assert found == []


def test_the_supervisor_has_no_loop_no_thread_and_no_store_connection() -> None:
    found = [
        f"{module.where}:{use.line} uses {use.name}"
        for module in modules("supervisor")
        for use in module.imports()
        if use.is_of(NOT_IN_THE_PARENT)
    ]
    assert found == []


def test_importing_the_supervisor_does_not_load_the_workflows() -> None:
    names = sorted(module.name for module in modules("supervisor"))
    script = f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\n"
    script += "print(*[name for name in sys.modules if name.startswith('pyrula.workflows')])"
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "\n", "")
