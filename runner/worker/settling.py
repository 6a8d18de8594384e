"""Acting on a death certificate.

Owns the walk over all shards of all served names: the page of the dead doesn't say in which shards
it held runs, the store does. Repeatable by anyone, half done or twice. Refuses to charge: a verdict
that names a guilty run is enforced with the charges.
"""

from __future__ import annotations

import asyncio

import structlog

from pyrula.supervisor.certificate import Certificate
from pyrula.workflows.worker.core import Core

log = structlog.get_logger()
SHARDS_AT_ONCE = 64


async def settle(core: Core, certificate: Certificate) -> dict[str, list[int]]:
    """Bury the incarnation and requeue all it held; gives the shards that got runs, by name.

    Raises `StoreUnavailable` half way; call it again.
    """
    got: dict[str, list[int]] = {}
    for workflow in core.definitions:
        shards = range(core.shard_count)
        for start in range(0, core.shard_count, SHARDS_AT_ONCE):
            batch = shards[start : start + SHARDS_AT_ONCE]
            requeued = await asyncio.gather(
                *(_settle_shard(core, workflow, shard, certificate) for shard in batch)
            )
            found = [shard for shard, count in zip(batch, requeued, strict=True) if count]
            if found:
                got.setdefault(workflow, []).extend(found)
    log.info(
        "death_settled",
        incarnation=certificate.incarnation,
        cause=certificate.cause.value,
        shards=sum(map(len, got.values())),
    )
    return got


async def _settle_shard(core: Core, workflow: str, shard: int, certificate: Certificate) -> int:
    total = 0
    while True:
        settled = await core.store.settle_death(
            workflow,
            shard,
            incarnation=certificate.incarnation,
            cause=certificate.cause.value,
            lost=certificate.lost_run_ids(workflow),
        )
        total += settled.requeued
        if not settled.more:
            return total
