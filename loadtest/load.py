"""A steady load of ledgered runs through the product's own client, and what the client saw.

Owns the lanes: each submits a run, waits for its result, then submits the next. An acknowledged
submit is written down; one without an answer is repeated with the same id until there is one.
Refuses to judge: the evidence goes to the checker.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

from loadtest import ledger
from loadtest.checker import Evidence, Journal
from loadtest.ledgered import NAME
from pyrula.workflows.client import RunHandle, WorkflowClient
from pyrula.workflows.stores.base import Store
from pyrula.workflows.stores.errors import (
    ResultTimeout,
    RunCancelledError,
    RunFailedError,
    RunNotFoundError,
    StoreUnavailable,
)

AGAIN_S = 0.1
PATIENCE_S = 5.0
SNAPSHOTS_EVERY = 10  # runs; one of so many has its journal read on the way


class Load:
    """Keeps `lanes` runs going until `stop`; some park for a moment if `naps`."""

    def __init__(self, store: Store, *, lanes: int, naps: bool, rng: random.Random) -> None:
        self._store = store
        self._client = WorkflowClient(store)
        self._lanes = lanes
        self._naps = naps
        self._rng = rng
        self._stopping = False
        self._earlier: dict[str, list[list[bytes]]] = {}
        self.accepted: list[str] = []
        self.open: set[str] = set()
        self.ends: Counter[str] = Counter()

    async def run(self) -> None:
        """Keep the lanes going; returns after `stop`, once every run has its result."""
        try:
            async with asyncio.TaskGroup() as group:
                for lane in range(self._lanes):
                    group.create_task(self._lane(lane), name=f"lane {lane}")
        finally:
            await self._client.close()

    async def stop(self, running: asyncio.Task[None], within: float) -> list[str]:
        """Submit nothing more; gives the runs that have no result `within` seconds."""
        self._stopping = True
        try:
            async with asyncio.timeout(within):
                await running
        except TimeoutError:
            return sorted(self.open)
        return []

    async def evidence(self, path: Path, resumed: list[tuple[int, float]]) -> Evidence:
        """Everything that is known of the accepted runs, with the ledger at `path`."""
        journals: dict[str, Journal] = {}
        for run_id in self.accepted:
            journal = await self._journal(run_id)
            if journal is not None:
                journals[run_id] = journal
        return Evidence(
            accepted=self.accepted,
            journals=journals,
            ledger=ledger.read(path),
            resumed=resumed,
        )

    async def _lane(self, lane: int) -> None:
        number = 0
        while not self._stopping:
            run_id = f"lane-{lane}-{number}"
            number += 1
            nap = 0.1 + self._rng.random() if self._naps and self._rng.random() < 0.25 else 0.0
            handle = await self._submitted(run_id, nap)
            self.accepted.append(run_id)
            self.open.add(run_id)
            if number % SNAPSHOTS_EVERY == 0:
                await self._look(run_id)
            self.ends[await _end(handle)] += 1
            self.open.discard(run_id)

    async def _submitted(self, run_id: str, nap: float) -> RunHandle:
        while True:
            try:
                return await self._client.submit(NAME, {"nap": nap}, run_id=run_id)
            except StoreUnavailable:
                await asyncio.sleep(AGAIN_S)

    async def _look(self, run_id: str) -> None:
        """Read the journal while the run goes on; the checker compares it with the last read."""
        await asyncio.sleep(self._rng.random())
        try:
            journal = await self._journal(run_id)
        except StoreUnavailable:
            return
        if journal is not None:
            self._earlier.setdefault(run_id, []).append(list(journal.events))

    async def _journal(self, run_id: str) -> Journal | None:
        ref = await self._client.ref(NAME, run_id)
        try:
            page = await self._store.read_journal(ref, 1)
        except RunNotFoundError:
            return None
        return Journal(
            length=page.length,
            trimmed=page.trimmed,
            events=page.events,
            earlier=self._earlier.get(run_id, ()),
        )


async def _end(handle: RunHandle) -> str:
    while True:
        try:
            await handle.result(timeout=PATIENCE_S)
        except ResultTimeout:
            continue
        except StoreUnavailable:
            await asyncio.sleep(AGAIN_S)
        except RunFailedError as error:
            return error.code
        except RunCancelledError:
            return "cancelled"
        except RunNotFoundError:
            return "lost"
        else:
            return "completed"
