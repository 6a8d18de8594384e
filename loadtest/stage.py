"""What every benchmark stands on: a fresh server, worker processes, a client in this process.

Owns starting and stopping them. Workers are the product's own command `pyrula worker`, so what is
measured is what users run.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.tally import Tally
from pyrula.workflows.client import WorkflowClient
from pyrula.workflows.stores.valkey.store import ValkeyStore
from tests.support.until import eventually
from tests.support.valkey import ValkeyServer

BOOT_S = 30.0
STUCK_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One `pyrula worker` process."""

    process: subprocess.Popen[bytes]
    log: Path

    def ready(self) -> bool:
        """Whether it has said so. Fails with its log if it ended instead."""
        text = self.log.read_text()
        assert self.process.poll() is None, f"a worker ended:\n{text}"
        return "worker_ready" in text

    def stop(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A running set-up."""

    server: ValkeyServer
    store: ValkeyStore
    client: WorkflowClient
    tally: Tally
    workers: tuple[Worker, ...]

    async def counted(self, runs: int) -> None:
        """Return once the workers' bodies have counted `runs`."""
        await eventually(lambda: self.tally.total() >= runs, STUCK_S, f"{runs} runs counted")

    def pause(self) -> None:
        """Stop the workers where they are."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for worker in self.workers:
            worker.process.send_signal(number)


@asynccontextmanager
async def stage(*, procs: int, in_flight: int = 50) -> AsyncGenerator[Stage]:
    """A fresh server with AOF everysec and `procs` ready workers; all gone afterwards."""
    with ValkeyServer(aof="everysec") as server:
        tally = Tally(server.folder / "tally")
        workers = tuple(
            _start_worker(server, tally, slot, in_flight=in_flight) for slot in range(procs)
        )
        store = ValkeyStore(server.url)
        await store.open()
        client = WorkflowClient(store)
        try:
            for worker in workers:
                await eventually(worker.ready, BOOT_S, "a worker that is ready")
            yield Stage(server=server, store=store, client=client, tally=tally, workers=workers)
        finally:
            await client.close()
            await store.close()
            for worker in workers:
                worker.stop()


def _start_worker(server: ValkeyServer, tally: Tally, slot: int, *, in_flight: int) -> Worker:
    log = server.folder / f"worker-{slot}.log"
    environment = {"PYRULA_STORE_URL": server.url} | tally.environment(slot)
    command = [str(Path(sys.executable).parent / "pyrula"), "worker"]
    arguments = ["--workflow", "loadtest.workflows", "--log-format", "json"]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*command, *arguments, "--max-concurrent-runs", str(in_flight)],
            env=os.environ | environment,
            stderr=stderr,
        )
    return Worker(process=process, log=log)


async def submit_many(client: WorkflowClient, name: str, count: int, *, at_once: int = 500) -> None:
    """Submit `count` runs without params as fast as the server takes them."""
    for start in range(0, count, at_once):
        batch = range(min(at_once, count - start))
        await asyncio.gather(*(client.submit(name) for _ in batch))


def server_info(server: ValkeyServer, section: str) -> dict[str, str]:
    """The fields of one section of INFO."""
    text: bytes = server.command("INFO", section)
    fields: dict[str, str] = {}
    for line in text.decode().splitlines():
        name, _, value = line.partition(":")
        fields[name] = value
    return fields
