"""The blocking side: lock renewal from a thread of its own, over a connection of its own.

Owns the renewer. It shares nothing with the loop's thread, so that a blocked loop can't keep
its locks from being renewed. Refuses to retry: a renewal that failed is due again soon, and its
caller knows better than a client library what to do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoScriptError, RedisError

from pyrula.workflows.stores.base import Flag, Lock, RenewReply
from pyrula.workflows.stores.errors import PyrulaError, StoreUnavailable
from pyrula.workflows.stores.valkey.decode import FLAGS
from pyrula.workflows.stores.valkey.functions import blocking_client, sha1
from pyrula.workflows.stores.valkey.keys import Keys
from pyrula.workflows.stores.valkey.url import StoreUrl

BATCH = 256
TIMEOUT_S = 3.0


class ValkeyRenewer:
    """Renews locks; connects at the first call and again after each failure."""

    def __init__(self, url: StoreUrl, keys: Keys, *, source: str) -> None:
        self._url = url
        self._keys = keys
        self._source = source
        self._sha = sha1(source)
        self._client: Any = None

    def renew(self, locks: Sequence[Lock], ttl_ms: int) -> list[RenewReply]:
        """One reply per lock, in order; one pipeline whatever their number.

        Raises `StoreUnavailable`; then nothing is known.
        """
        batches = _batches(locks)
        replies = self._run([self._request(locks, batch, ttl_ms) for batch in batches])
        renewed: dict[int, RenewReply] = {}
        for batch, bits in zip(batches, replies, strict=True):
            renewed.update(zip(batch, map(_reply, bits), strict=True))
        return [renewed[i] for i in range(len(locks))]

    def close(self) -> None:
        """Give the connection back; a later call makes a new one."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _request(self, locks: Sequence[Lock], batch: list[int], ttl_ms: int) -> list[str | int]:
        first = locks[batch[0]]
        pairs = [part for i in batch for part in (locks[i].ref.run_id, locks[i].token)]
        prefix = self._keys.shard(first.ref.workflow, first.ref.shard)
        return [prefix, "renew_locks", first.incarnation, ttl_ms, *pairs]

    def _run(self, requests: list[list[str | int]]) -> list[list[int]]:
        try:
            replies = self._pipeline(requests)
            if any(isinstance(reply, NoScriptError) for reply in replies):
                # A renewal that did run is repeated with the others: it only renews again.
                self._connected().script_load(self._source)
                replies = self._pipeline(requests)
        except (RedisError, OSError) as error:
            raise self._unavailable(error) from None
        for reply in replies:
            if isinstance(reply, Exception):
                raise self._unavailable(reply)
        return replies

    def _pipeline(self, requests: list[list[str | int]]) -> list[Any]:
        pipeline = self._connected().pipeline(transaction=False)
        for request in requests:
            pipeline.execute_command("EVALSHA", self._sha, 1, *request)
        return list(pipeline.execute(raise_on_error=False))

    def _connected(self) -> Any:
        if self._client is None:
            self._client = blocking_client(self._url, timeout=TIMEOUT_S)
        return self._client

    def _unavailable(self, error: Exception) -> PyrulaError:
        self.close()
        return StoreUnavailable(
            f"expected {self._url.safe()} to renew locks, found it failing "
            f"({type(error).__name__}: {error}); renew again while the locks last",
            applied_unknown=True,
        )


def _batches(locks: Sequence[Lock]) -> list[list[int]]:
    groups: defaultdict[tuple[str, int, str], list[int]] = defaultdict(list)
    for i, lock in enumerate(locks):
        groups[lock.ref.workflow, lock.ref.shard, lock.incarnation].append(i)
    return [
        group[start : start + BATCH]
        for group in groups.values()
        for start in range(0, len(group), BATCH)
    ]


def _reply(bits: int) -> RenewReply:
    return RenewReply(bits >= 0, FLAGS[bits] if bits >= 0 else Flag.NONE)
