"""Running one worker in the foreground of this process.

Owns the order: import, open, serve, close. Refuses to restart anything; a supervisor does that.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any

import structlog

from pyrula.supervisor.exits import ExitCode
from pyrula.workflows.loading import load_workflows
from pyrula.workflows.logs import LogFormat, configure_logs
from pyrula.workflows.opening import open_store
from pyrula.workflows.stores.base import Store
from pyrula.workflows.stores.errors import StoreUnavailable
from pyrula.workflows.stores.seams import Seams
from pyrula.workflows.worker.options import WorkerOptions
from pyrula.workflows.worker.process import Signals, reached, run_on_loop, settle_memory
from pyrula.workflows.worker.worker import WorkflowWorker

log = structlog.get_logger()


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


def serve(serving: Serving) -> ExitCode:
    """Import the workflows and serve them until a signal.

    Raises what `load_workflows`, `open_store` and `WorkflowWorker.run` raise.
    """
    configure_logs(serving.log_format)
    workflows = load_workflows(serving.targets, serving.app_dir)
    settle_memory()
    store = open_store(
        serving.url,
        namespace=serving.namespace,
        shard_count=serving.shard_count,
        store_id=os.environ.get("PYRULA_STORE_ID"),
    )
    signals = Signals()
    run_on_loop(_serve(serving, store, [d.fn for d in workflows], signals), serving.loop)
    return ExitCode.OK


async def _serve(serving: Serving, store: Store, workflows: list[Any], signals: Signals) -> None:
    worker = WorkflowWorker(store=store, workflows=workflows, options=serving.options)
    try:
        if not await reached(worker.connect, serving.boot_budget_s, signals, Seams()):
            return
        signals.drain_with(worker.stop)
        await worker.run(on_ready=lambda: _announce(worker))
    finally:
        with contextlib.suppress(StoreUnavailable):
            await store.close()


async def _announce(worker: WorkflowWorker) -> None:
    core = worker.core
    log.info("worker_ready", worker=core.incarnation, workflows=sorted(core.definitions))
