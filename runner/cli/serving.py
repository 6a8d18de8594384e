"""Running one worker in the foreground of this process.

Owns its signals (the first TERM or INT drains, the second ends at once), the choice of event loop,
and the patience with a store that isn't there yet. Refuses to restart anything; a supervisor does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import structlog

from pyrula.supervisor.exits import Exit
from pyrula.workflows.loading import load_workflows
from pyrula.workflows.logs import LogFormat, configure_logs
from pyrula.workflows.opening import open_store
from pyrula.workflows.stores.base import Store
from pyrula.workflows.stores.errors import ConfigurationError, StoreUnavailable
from pyrula.workflows.worker.options import WorkerOptions
from pyrula.workflows.worker.worker import WorkflowWorker

log = structlog.get_logger()
RETRY_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Everything one worker process needs to know."""

    targets: tuple[str, ...]
    app_dir: str
    url: str
    namespace: str
    shard_count: int
    options: WorkerOptions
    loop: str
    boot_budget_s: float
    log_format: LogFormat


def serve(serving: Serving) -> Exit:
    """Import the workflows and serve them until a signal.

    Raises what `load_workflows`, `open_store` and `WorkflowWorker.run` raise.
    """
    configure_logs(serving.log_format)
    workflows = load_workflows(serving.targets, serving.app_dir)
    store = open_store(serving.url, namespace=serving.namespace, shard_count=serving.shard_count)
    signals = Signals()
    with asyncio.Runner(loop_factory=loop_factory(serving.loop)) as runner:
        runner.run(_serve(serving, store, [d.fn for d in workflows], signals))
    return Exit.OK


def loop_factory(kind: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the loop; `auto` is uvloop where it is installed.

    Raises `ConfigurationError` `no_uvloop`.
    """
    if kind == "asyncio":
        return None
    try:
        import uvloop
    except ImportError as error:
        if kind == "auto":
            return None
        raise ConfigurationError(
            "expected uvloop for --loop uvloop, found it not installed; install it or use "
            "--loop asyncio",
            code="no_uvloop",
        ) from error
    return uvloop.new_event_loop


class Signals:
    """TERM and INT of this process: the first asks for a drain, the second ends it at once.

    Plain handlers, not the loop's: they run between bytecodes also while a body blocks the loop.
    """

    def __init__(self) -> None:
        self._stop: Callable[[], None] | None = None
        self.received = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def drain_with(self, stop: Callable[[], None]) -> None:
        """From now on a first signal calls `stop`; at once if it came already."""
        self._stop = stop
        if self.received:
            stop()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self.received:
            os._exit(128 + number)
        self.received = True
        if self._stop is not None:
            self._stop()


async def _serve(serving: Serving, store: Store, workflows: list[Any], signals: Signals) -> None:
    if not await _reached(store, serving.boot_budget_s, signals):
        return
    try:
        worker = WorkflowWorker(store=store, workflows=workflows, options=serving.options)
        signals.drain_with(worker.stop)
        await worker.run(on_ready=lambda: _announce(worker))
    finally:
        with contextlib.suppress(StoreUnavailable):
            await store.close()


async def _reached(store: Store, budget_s: float, signals: Signals) -> bool:
    """Open the store, waiting for it within the budget; false if a signal came first."""
    end = time.monotonic() + budget_s
    said = False
    while not signals.received:
        try:
            await store.open()
            return True
        except StoreUnavailable as error:
            if time.monotonic() + RETRY_S > end:
                raise
            if not said:
                log.warning("store_unavailable", reason=error.message, patience_s=budget_s)
            said = True
        await asyncio.sleep(RETRY_S)
    return False


def _announce(worker: WorkflowWorker) -> None:
    core = worker.core
    log.info("worker_ready", worker=core.incarnation, workflows=sorted(core.definitions))
