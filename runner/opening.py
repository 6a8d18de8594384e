"""From a URL to a store.

Owns the choice of store by scheme. Refuses schemes it doesn't know with a sentence, and never
quotes a URL, which may hold a password. Connecting is left to `Store.open`.
"""

from __future__ import annotations

from pyrula.workflows.stores.base import Store
from pyrula.workflows.stores.errors import ConfigurationError
from pyrula.workflows.stores.valkey.store import ValkeyStore

DEFAULT_NAMESPACE = "default"
DEFAULT_SHARD_COUNT = 64


def open_store(
    url: str,
    *,
    namespace: str = DEFAULT_NAMESPACE,
    shard_count: int = DEFAULT_SHARD_COUNT,
    store_id: str | None = None,
) -> Store:
    """The store at `url`, not yet connected; with a `store_id` it must be that very store.

    Raises `ConfigurationError` `store_not_supported` for a kind of store that this release doesn't
    have, `invalid_store_url` or `invalid_option` for what can't be read.

    >>> open_store("unix:///run/valkey.sock", shard_count=16).shard_count
    16
    """
    if url.partition(":")[0] == "sqlite":
        raise ConfigurationError(
            "expected a Valkey or Redis URL, found sqlite, which this release doesn't have yet; "
            "use valkey://host:6379 or unix:///path/to/socket",
            code="store_not_supported",
        )
    return ValkeyStore(url, namespace=namespace, shard_count=shard_count, store_id=store_id)
