"""The store's own mark, and the names it knows.

Owns the store id (written once, compared at every contact) and the registration of workflow names
with their shard count. Refuses to let a server that was emptied or swapped pass for ours.
"""

from __future__ import annotations

import asyncio

from pyrula.workflows.stores.base import Registration
from pyrula.workflows.stores.errors import ConfigurationError, StoreEmptied
from pyrula.workflows.stores.valkey.calls import Caller
from pyrula.workflows.stores.valkey.codes import Code
from pyrula.workflows.stores.valkey.decode import text
from pyrula.workflows.stores.valkey.keys import LAYOUT, Keys
from pyrula.workflows.stores.valkey.wire import Connection


async def meet_store(
    connection: Connection, key: str, *, known: str | None, fresh: str, url: str
) -> str:
    """The server's store id; with a `known` one it must be that, else `fresh` is written if none.

    Raises `StoreEmptied`.
    """
    if known is None:
        await connection.call(b"SET", key, fresh, b"NX")
    found = text(await connection.call(b"GET", key))
    if known is not None and found != known:
        raise StoreEmptied(
            f"expected the store {known} at {url}, found {found or 'an empty server'}; it was "
            "emptied or swapped, restore its data or give the new one a store of its own",
            detail={"expected": known, "found": found or None},
        )
    return found


async def register(
    caller: Caller, keys: Keys, workflow: str, *, shard_count: int, store_id: str, serving: bool
) -> Registration:
    """Record the name or adopt what is recorded; see `Store.register`.

    Every shard's meta is written before the name is usable, by whoever finds it undone, so a
    registrar that died half-way leaves nothing behind that a later one could mistake.
    """
    registry = keys.registry(workflow)
    reply = await caller.run(
        b"register_name", (registry,), shard_count, store_id, int(serving), what=workflow
    )
    if reply[0] == Code.SHARD_COUNT:
        raise ConfigurationError(
            f"expected shard_count {reply[1]}, which {workflow} is recorded with, found "
            f"{shard_count}; set it back, or drain the name's runs before changing it",
            code="shard_count_mismatch",
            detail={"recorded": reply[1], "configured": shard_count},
        )
    recorded, recorded_id, served, laid = reply
    if not laid:
        await _lay_shards(caller, keys, workflow, recorded, text(recorded_id))
    return Registration(shard_count=recorded, store_id=text(recorded_id), served=bool(served))


async def names(caller: Caller, keys: Keys) -> list[str]:
    """All registered names, sorted."""
    return sorted(text(name) for name in await caller.command(b"SMEMBERS", keys.names()))


async def recorded_count(caller: Caller, keys: Keys, workflow: str) -> int:
    """The shard count a name is recorded with; 0 for a name that is not registered."""
    return int(await caller.command(b"HGET", keys.registry(workflow), b"shard_count") or 0)


async def _lay_shards(
    caller: Caller, keys: Keys, workflow: str, shard_count: int, store_id: str
) -> None:
    await asyncio.gather(
        *(
            caller.run(b"lay_shard", (keys.shard(workflow, shard),), store_id, shard_count, LAYOUT)
            for shard in range(shard_count)
        )
    )
    await caller.command(b"SADD", keys.names(), workflow)
    await caller.command(b"HSET", keys.registry(workflow), b"laid", 1)
