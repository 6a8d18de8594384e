"""Which shard a run lives in.

Owns one pure function, the same in every build and every process for ever: a chain, its hops and
its retries share one shard, so that a hop or a retry is a script in one slot.
"""

from __future__ import annotations

import zlib

from pyrula.workflows.stores.names import chain_root


def shard_of(run_id: str, shard_count: int) -> int:
    """The shard of `run_id` among `shard_count` (≥ 1).

    >>> shard_of("order-7", 64) == shard_of("order-7~3.retry", 64)
    True
    """
    return zlib.crc32(chain_root(run_id).encode()) % shard_count
