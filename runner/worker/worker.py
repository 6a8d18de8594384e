"""`WorkflowWorker`: the public face of a worker.

Owns the life of one: register the names, start the loops, and on `stop` the five ordered steps of a
graceful shutdown. Refuses signals (whoever runs it installs handlers) and the choice of store.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import structlog

from pyrula.workflows.client import WorkflowClient
from pyrula.workflows.engine.registry import WorkflowDefinition, definition_of, registered
from pyrula.workflows.stores.base import Hint, Store
from pyrula.workflows.stores.errors import ConfigurationError
from pyrula.workflows.stores.seams import Seams
from pyrula.workflows.worker.attempts import Attempts
from pyrula.workflows.worker.attribution import Publisher
from pyrula.workflows.worker.claiming import ClaimLoop
from pyrula.workflows.worker.core import Core
from pyrula.workflows.worker.hints import HintLoop
from pyrula.workflows.worker.loops import Loop
from pyrula.workflows.worker.options import WorkerOptions
from pyrula.workflows.worker.orphans import OrphanLoop
from pyrula.workflows.worker.pool import StepPool
from pyrula.workflows.worker.renewal import Renewal
from pyrula.workflows.worker.timers import TimerLoop

log = structlog.get_logger()


class WorkflowWorker:
    """Claims runs of the served workflows and sees them through, until `stop`.

    `workflows` are decorated functions (or names); None serves every imported one. With
    PYRULA_CLOUD_API_KEY set and `cloud` not False, raises `ConfigurationError`
    `cloud_client_missing`, since no connector is installed.

    >>> worker = WorkflowWorker(store=MemoryStore())      # doctest: +SKIP
    >>> await worker.run()                                # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        store: Store,
        workflows: Iterable[Any] | None = None,
        options: WorkerOptions | None = None,
        cloud: bool | None = None,
        incarnation: str | None = None,
        publisher: Publisher | None = None,
        seams: Seams | None = None,
    ) -> None:
        _check_cloud(cloud)
        seams = seams or Seams()
        self._core = Core(
            store=store,
            options=options or WorkerOptions(),
            definitions=_served(workflows),
            incarnation=incarnation or f"{socket.gethostname()}-{seams.ids.token()[:16]}",
            seams=seams,
        )
        self._publisher = publisher
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connected = False
        self._claims: dict[str, ClaimLoop] = {}
        self._attempts: Attempts | None = None
        self.store_id = ""  # known once connected
        self.client = WorkflowClient(store)

    @property
    def core(self) -> Core:
        """What the loops share; for the process entry that runs this worker."""
        return self._core

    @property
    def runs(self) -> int:
        """How many runs are in flight."""
        return len(self._attempts.live) if self._attempts else 0

    def stop(self) -> None:
        """Begin the graceful shutdown; from any thread or a signal handler, any number of times."""
        loop = self._loop
        if loop is None or loop.is_closed():
            self._stopping.set()
            return
        with contextlib.suppress(RuntimeError):  # closed just now: nothing is left to stop
            loop.call_soon_threadsafe(self._stopping.set)

    def hint(self, workflow: str, shard: int) -> None:
        """Something became claimable there."""
        claim = self._claims.get(workflow)
        if claim is not None:
            claim.hint(shard)

    def poll(self) -> None:
        """Look everywhere now, hints or not."""
        for claim in self._claims.values():
            claim.hint_all()

    async def connect(self) -> None:
        """Open the store and register the served names; `run` does it if nobody has.

        Raises `StoreUnavailable`, and `ConfigurationError` for a store that can't be used.
        """
        await self._core.store.open()
        for name in sorted(self._core.definitions):
            self.store_id = (await self._core.store.register(name, serving=True)).store_id
        self._connected = True

    async def run(self, on_ready: Callable[[], Awaitable[None]] | None = None) -> None:
        """Serve until `stop`, then drain; the store is left open.

        `on_ready` is awaited once the names are registered, before the first claim. Raises
        what a background loop raised other than a store outage, and what `connect` raises.
        """
        self._loop = asyncio.get_running_loop()
        if not self._connected:
            await self.connect()
        core = self._core
        pool = StepPool(core.seams.spawner)
        renewal = Renewal(core)
        timers = TimerLoop(core)
        hints = HintLoop(core, self._on_hint, self.poll)
        attempts = self._attempts = Attempts(core, renewal, timers, pool, self._publisher)
        self._claims = {name: ClaimLoop(core, name, attempts.start) for name in core.definitions}
        loops = [*self._claims.values(), timers, attempts.giving_back, OrphanLoop(core, timers)]
        try:
            renewal.start()
            if on_ready is not None:
                await on_ready()
            await self._serve([hints, *loops], renewal, attempts, pool)
        finally:
            attempts.cancel_all()
            renewal.close()
            pool.close()
            await hints.close()

    def _on_hint(self, hint: Hint) -> None:
        if hint.kind == "work":
            self.hint(hint.workflow, hint.shard)
        elif hint.kind == "cancel" and self._attempts is not None:
            self._attempts.cancel_requested(hint.workflow, hint.run_id)

    # Serving and stopping

    async def _serve(
        self, loops: list[Loop], renewal: Renewal, attempts: Attempts, pool: StepPool
    ) -> None:
        tasks = [asyncio.create_task(loop.run(), name=loop.name) for loop in loops]
        tasks.append(asyncio.create_task(renewal.beat(), name="renewal"))
        stopping = asyncio.create_task(_wait(self._stopping), name="stopping")
        try:
            await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    log.error("loop_failed", loop=task.get_name(), reason=str(task.exception()))
            await self._drain(attempts, pool)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in [*tasks, stopping]:
                task.cancel()
            await asyncio.wait([*tasks, stopping])

    async def _drain(self, attempts: Attempts, pool: StepPool) -> None:
        """The spec's ordered steps; releasing shard leases joins them with the leases."""
        options = self._core.options
        self._core.draining = True
        log.info("worker_draining", runs=len(attempts.live))
        await _within(options.shutdown_grace, self._finished(attempts))
        attempts.stand_down_all()
        await _within(options.cancel_timeout, attempts.finished())
        attempts.abandon_all()
        if not await _within(options.cancel_timeout, pool.settled()):
            log.warning("worker_thread_calls_still_running", calls=pool.busy)
        await _within(options.cancel_timeout, attempts.giving_back.settled())
        log.info("worker_stopped")

    async def _finished(self, attempts: Attempts) -> None:
        # First the claims that are on their way: they may still bring runs.
        for claim in self._claims.values():
            await claim.quiet()
        await attempts.finished()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def _within(seconds: float, what: Awaitable[None]) -> bool:
    """Whether `what` ended within `seconds`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await what
        return True
    return False


def _served(workflows: Iterable[Any] | None) -> Mapping[str, WorkflowDefinition]:
    found = (
        registered() if workflows is None else {d.name: d for d in map(definition_of, workflows)}
    )
    if not found:
        raise ConfigurationError(
            "expected at least one workflow to serve, found none; import the module that holds "
            "your @workflow functions first, or pass workflows=",
            code="no_workflows",
        )
    return found


def _check_cloud(cloud: bool | None) -> None:
    if cloud is not False and os.environ.get("PYRULA_CLOUD_API_KEY"):
        raise ConfigurationError(
            "expected pyrula-cloud-client since PYRULA_CLOUD_API_KEY is set, found no such "
            "package; install it, or pass cloud=False",
            code="cloud_client_missing",
        )
