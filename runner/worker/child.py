"""A worker under a supervisor: the entry that is called after the fork.

Owns the child's side of the channel and the page: ready or boot-failed, beats, stats, deaths to
settle, hints, drain. Refuses to outlive its parent: end of file on the channel ends the process at
once. Imports the user's modules here and nowhere earlier, so a reload really reloads them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal

import structlog
from setproctitle import setproctitle

from pyrula.supervisor.certificate import Certificate, Frame
from pyrula.supervisor.exits import ExitCode
from pyrula.supervisor.link import (
    BootFailed,
    ChildSetup,
    Drain,
    Draining,
    Hint,
    Message,
    Ready,
    Settle,
    Settled,
    Stats,
    Tick,
)
from pyrula.supervisor.page import Phase
from pyrula.workflows.loading import ModuleFailed, load_workflows
from pyrula.workflows.opening import DEFAULT_SHARD_COUNT, open_store
from pyrula.workflows.stores.base import Store
from pyrula.workflows.stores.errors import PyrulaError, StoreUnavailable
from pyrula.workflows.stores.seams import Seams
from pyrula.workflows.worker.attribution import PagePublisher
from pyrula.workflows.worker.options import WorkerOptions
from pyrula.workflows.worker.process import Signals, reached, run_on_loop, settle_memory
from pyrula.workflows.worker.settling import settle
from pyrula.workflows.worker.worker import WorkflowWorker

log = structlog.get_logger()
BEAT_S = 0.1
STATS_EVERY = 10  # beats
RETRY_SETTLE_S = 0.1


def main(setup: ChildSetup) -> int:
    """Run the worker until it is drained; returns the exit status of the process."""
    signals = Signals()
    child: ChildWorker | None = None
    try:
        child = _made(setup, signals)
        run_on_loop(child.serve(), setup.loop)
    except PyrulaError as error:
        log.error("worker_failed", code=error.code, reason=error.message)
        if child is not None and child.ready:
            return ExitCode.FAILED
        return _boot_failed(setup, error)
    return ExitCode.OK


def _made(setup: ChildSetup, signals: Signals) -> ChildWorker:
    options = WorkerOptions.from_strings(setup.options)
    workflows = load_workflows(setup.workflows, setup.app_dir)
    settle_memory()
    store = open_store(
        setup.store_url,
        namespace=setup.namespace,
        shard_count=setup.shard_count or DEFAULT_SHARD_COUNT,
        store_id=setup.store_id,
    )
    seams = Seams()
    worker = WorkflowWorker(
        store=store,
        workflows=[definition.fn for definition in workflows],
        options=options,
        incarnation=setup.incarnation,
        publisher=PagePublisher(setup.page, seams.clock),
        seams=seams,
    )
    return ChildWorker(setup, worker, store, seams, signals)


class ChildWorker:
    """One worker and its conversation with the parent."""

    def __init__(
        self,
        setup: ChildSetup,
        worker: WorkflowWorker,
        store: Store,
        seams: Seams,
        signals: Signals,
    ) -> None:
        self._setup = setup
        self._worker = worker
        self._store = store
        self._seams = seams
        self._signals = signals
        self._settling: dict[str, asyncio.Task[None]] = {}
        self._lags_ms: deque[float] = deque(maxlen=600)
        self._over = seams.spawner.flag()
        self.ready = False

    async def serve(self) -> None:
        """Serve until drained. Raises what kept it from getting ready, or stopped it."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._setup.channel.fileno(), self._on_readable)
        self._setup.page.loop_thread(threading.get_native_id())
        self._seams.spawner.spawn("pyrula-beat", self._beat_thread)
        beating = asyncio.create_task(self._beat(), name="page beat")
        try:
            budget_s, connect = self._setup.boot_budget_s, self._worker.connect
            if not await reached(connect, budget_s, self._signals, self._seams):
                return
            # The handler runs between any two instructions: the loop is where the channel is used.
            self._signals.drain_with(partial(_on_loop, loop, self._drain))
            await self._worker.run(on_ready=self._ready)
        finally:
            self._over.set()
            beating.cancel()
            with contextlib.suppress(StoreUnavailable):
                await self._store.close()

    async def _ready(self) -> None:
        # The dead first: their runs must not wait for a claim that could come before.
        for certificate in self._setup.settle_first:
            await self._settle(certificate)
        self.ready = True
        self._setup.page.phase(Phase.READY)
        self._setup.channel.send(Ready(store_id=self._worker.store_id))
        log.info("worker_ready", workflows=sorted(self._worker.core.definitions))

    def _drain(self) -> None:
        self._setup.page.phase(Phase.DRAINING)
        self._setup.channel.send(Draining())
        self._worker.stop()

    # Messages

    def _on_readable(self) -> None:
        for message in self._setup.channel.receive():
            self._handle(message)
        if self._setup.channel.closed:
            os._exit(ExitCode.FAILED)  # the parent is gone: nothing may outlive it

    def _handle(self, message: Message) -> None:
        match message:
            case Settle(certificate=certificate):
                if certificate.id not in self._settling:
                    task = asyncio.create_task(self._settle(certificate), name="settle")
                    self._settling[certificate.id] = task
                    task.add_done_callback(lambda _: self._settling.pop(certificate.id, None))
            case Hint(got=got):
                self._hint(got)
            case Tick():
                self._worker.poll()
            case Drain():
                self._drain()
            case _:
                pass

    async def _settle(self, certificate: Certificate) -> None:
        while True:
            try:
                got = await settle(self._worker.core, certificate)
                break
            except StoreUnavailable as error:
                log.warning("settlement_delayed", reason=error.message)
                await self._seams.sleeper.sleep(RETRY_SETTLE_S)
        self._setup.channel.send(Settled(id=certificate.id, got=got))
        self._hint(got)

    def _hint(self, got: dict[str, list[int]]) -> None:
        for workflow, shards in got.items():
            for shard in shards:
                self._worker.hint(workflow, shard)

    # Beats

    async def _beat(self) -> None:
        clock, beats, last_runs = self._seams.clock, 0, -1
        while True:
            asked = clock.monotonic()
            await self._seams.sleeper.sleep(BEAT_S)
            lag_s = max(0.0, clock.monotonic() - asked - BEAT_S)
            self._lags_ms.append(lag_s * 1000)
            self._setup.page.loop_beat()
            self._setup.channel.flush()
            runs = self._worker.runs
            self._setup.health.write(
                at_ns=int(clock.monotonic() * 1e9), loop_lag_us=int(lag_s * 1e6), runs=runs
            )
            beats += 1
            if beats % STATS_EVERY == 0 or runs != last_runs:
                last_runs = runs
                self._tell(runs)

    def _tell(self, runs: int) -> None:
        self._setup.channel.send(self._stats(runs))
        state = "draining" if self._worker.core.draining else "ready" if self.ready else "booting"
        setproctitle(f"pyrula: worker {self._setup.slot} [{state}] runs={runs}")

    def _beat_thread(self) -> None:
        self._setup.page.beat_thread(threading.get_native_id())
        while not self._over.wait(BEAT_S):
            self._setup.page.thread_beat()

    def _stats(self, runs: int) -> Stats:
        core = self._worker.core
        lags = sorted(self._lags_ms)
        return Stats(
            shards=dict.fromkeys(sorted(core.definitions), core.shard_count),
            runs=runs,
            loop_lag_p50_ms=lags[len(lags) // 2] if lags else None,
            loop_lag_p99_ms=lags[len(lags) * 99 // 100] if lags else None,
        )


def _on_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(callback)


def _boot_failed(setup: ChildSetup, error: PyrulaError) -> ExitCode:
    """Tell the parent, which shows it if no child ever gets ready."""
    status: Literal[1, 2, 4] = 2
    if isinstance(error, StoreUnavailable):
        status = 4
    elif isinstance(error, ModuleFailed):
        status = 1
    frames = tuple(Frame(**frame) for frame in error.detail.get("frames", ()))
    setup.channel.send(
        BootFailed(code=error.code, message=error.message, exit=status, frames=frames)
    )
    return ExitCode.CHILD_BOOT_FAILED
