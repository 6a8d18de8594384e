"""Questions over many shards: lists of runs, where an id lives, what has expired.

Owns the merge of the shards' run lists (newest first, in small pages, so that neither a page nor a
script call is ever long) and the id index. Refuses to hold more than a page of each shard.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from pyrula.workflows.stores.base import RunInfo, RunRef, Status
from pyrula.workflows.stores.valkey import decode
from pyrula.workflows.stores.valkey.calls import Caller
from pyrula.workflows.stores.valkey.decode import text
from pyrula.workflows.stores.valkey.keys import Keys, run_keys
from pyrula.workflows.stores.valkey.registry import recorded_count

WINDOW = 256


@dataclass(frozen=True, kw_only=True)
class Filter:
    """What a list is narrowed to; None matches all."""

    status: Status | None
    owner: str | None


class ShardPages:
    """One shard's matching runs, newest first, fetched a window at a time."""

    def __init__(
        self, caller: Caller, prefix: str, workflow: str, shard: int, want: Filter
    ) -> None:
        self._caller = caller
        self._prefix = prefix
        self._workflow = workflow
        self._shard = shard
        self._want = want
        self._offset = 0
        self._window = 16
        self._page: deque[RunInfo] = deque()
        self._more = True

    async def peek(self) -> RunInfo | None:
        """The newest run not yet taken, or None at the end."""
        while not self._page and self._more:
            await self._fetch()
        return self._page[0] if self._page else None

    def take(self) -> RunInfo:
        """Take what `peek` showed."""
        return self._page.popleft()

    async def _fetch(self) -> None:
        scanned, *rows = await self._caller.run(
            b"list_runs",
            (self._prefix,),
            self._offset,
            self._window,
            self._want.status or "",
            self._want.owner or "",
        )
        self._more = scanned == self._window
        self._offset += scanned
        self._window = WINDOW
        for run_id, row in rows:
            ref = RunRef(self._workflow, text(run_id), self._shard)
            self._page.append(decode.run_info(row, ref))


async def list_runs(
    caller: Caller, keys: Keys, workflow: str, want: Filter, limit: int
) -> list[RunInfo]:
    """The newest `limit` runs of a name that match, newest first."""
    shards = range(await recorded_count(caller, keys, workflow))
    pages = [
        ShardPages(caller, keys.shard(workflow, shard), workflow, shard, want) for shard in shards
    ]
    newest: list[RunInfo] = []
    async for run in _merge(pages):
        if len(newest) == limit:
            break
        newest.append(run)
    return newest


async def find(caller: Caller, keys: Keys, run_id: str) -> list[RunRef]:
    """All runs with that id, by the index line of its chain."""
    lines = await caller.command(b"SMEMBERS", keys.index(run_id))
    places = sorted(text(line).rpartition(":")[::2] for line in lines)
    refs = [RunRef(workflow, run_id, int(shard)) for workflow, shard in places]
    hashes = [run_keys(keys.shard(ref.workflow, ref.shard), run_id)[0] for ref in refs]
    there = await asyncio.gather(*(caller.command(b"EXISTS", key) for key in hashes))
    return [ref for ref, exists in zip(refs, there, strict=True) if exists]


async def sweep(caller: Caller, keys: Keys, workflow: str, shard: int, limit: int) -> int:
    """Forget expired runs: first their index lines, then the shard's own lists.

    In this order a crash in between leaves work to repeat, never a line without an end. A run
    submitted anew under the same id meanwhile gets its line back.
    """
    prefix, line = keys.shard(workflow, shard), index_line(workflow, shard)
    expired = [
        text(run_id)
        for run_id in await caller.run(b"list_expired", (prefix,), max(1, min(limit, 500)))
    ]
    if not expired:
        return 0
    await asyncio.gather(*(caller.command(b"SREM", keys.index(run_id), line) for run_id in expired))
    alive = await caller.run(b"forget_runs", (prefix,), *expired)
    for run_id in alive:
        await caller.command(b"SADD", keys.index(text(run_id)), line)
    return len(expired) - len(alive)


def index_line(workflow: str, shard: int) -> str:
    """What the index keeps of a run; names have no colon."""
    return f"{workflow}:{shard}"


class _Head:
    """The newest run of one shard not yet taken; the heap's least is the newest of all."""

    def __init__(self, run: RunInfo, pages: ShardPages) -> None:
        self.age = (run.created_ms, run.ref.run_id)
        self.pages = pages

    def __lt__(self, other: _Head) -> bool:
        return self.age > other.age


async def _merge(shards: list[ShardPages]) -> AsyncIterator[RunInfo]:
    first = await asyncio.gather(*(pages.peek() for pages in shards))
    heads = [_Head(run, pages) for run, pages in zip(first, shards, strict=True) if run]
    heapq.heapify(heads)
    while heads:
        pages = heapq.heappop(heads).pages
        yield pages.take()
        if (run := await pages.peek()) is not None:
            heapq.heappush(heads, _Head(run, pages))
