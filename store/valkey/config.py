"""What a `ValkeyStore` can be told, and the rules that each value is held to.

Owns defaults and validation; a value that breaks a rule is refused with a sentence before anything
is connected.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from pyrula.workflows.stores.errors import ConfigurationError
from pyrula.workflows.stores.names import check_namespace

Duration = float | timedelta


@dataclass(frozen=True, kw_only=True)
class ValkeyConfig:
    """Options of a store; durations in seconds.

    `completed_ttl` is how long a finished run can be read, `maxlen` how many events a journal
    keeps, `replay_page_bytes` and `replay_page_size` what one `read_journal` returns at most.
    `store_id` is the mark the server must carry; without it the first contact decides.
    `allow_eviction` accepts a server that may evict keys: it can then lose runs. `cluster=True` is
    refused and `shard_lease_ttl` only validated, until a later release. Raises
    `ConfigurationError` `invalid_option` or `cluster_not_supported`, and `InvalidInputError`
    `invalid_namespace`.

    >>> ValkeyConfig(shard_count=16).completed_ttl_ms
    604800000
    """

    shard_count: int = 64
    namespace: str = "default"
    cluster: bool | None = None
    completed_ttl: Duration = timedelta(days=7)
    shard_lease_ttl: Duration = 30.0
    maxlen: int = 100_000
    replay_page_bytes: int = 8 << 20
    replay_page_size: int = 1_000
    store_id: str | None = None
    allow_eviction: bool = False

    def __post_init__(self) -> None:
        check_namespace(self.namespace)
        _check_range("shard_count", self.shard_count, 1, 4_096)
        _check_range("maxlen", self.maxlen, 3, 1 << 31)
        _check_range("replay_page_bytes", self.replay_page_bytes, 1, 1 << 30)
        _check_range("replay_page_size", self.replay_page_size, 1, 1_000_000)
        _check_range("completed_ttl", _seconds(self.completed_ttl), 0.001, 1e9)
        _check_range("shard_lease_ttl", _seconds(self.shard_lease_ttl), 0.1, 3_600)
        if self.cluster:
            raise cluster_not_supported("cluster=True")

    @property
    def completed_ttl_ms(self) -> int:
        """`completed_ttl` in whole milliseconds, at least 1."""
        return max(1, round(_seconds(self.completed_ttl) * 1_000))


def cluster_not_supported(found: str) -> ConfigurationError:
    """The refusal of a cluster; `found` is what gave it away."""
    return ConfigurationError(
        f"expected a standalone server, found {found}; this release doesn't speak to a cluster "
        "yet, point the store at a single server",
        code="cluster_not_supported",
    )


def _seconds(duration: Duration) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def _check_range(key: str, value: float, least: float, most: float) -> None:
    # `not` around the chain also refuses NaN.
    if isinstance(value, bool) or not least <= value <= most:
        raise ConfigurationError(
            f"expected {key} from {least:g} to {most:g}, found {value!r}; set it within that range",
            code="invalid_option",
        )
