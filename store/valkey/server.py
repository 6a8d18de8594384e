"""What a server must be before runs are entrusted to it.

Owns the reading of INFO and the verdict: too old, a replica, a cluster, a server that evicts keys
are refused; no append-only file is warned about; what may not be read is said once, in one line.
Refuses nothing that it can't verify.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from pyrula.workflows.stores.errors import ConfigurationError, WrongServer
from pyrula.workflows.stores.valkey.config import cluster_not_supported

log = structlog.get_logger("pyrula.store")

LEAST_VALKEY = (7, 2)
LEAST_REDIS = (6, 2)
KNOWS_SHEBANG = (7, 0)


@dataclass(frozen=True, kw_only=True)
class ServerInfo:
    """What INFO said. `knows_shebang`: scripts may start with `#!lua`."""

    product: str
    version: tuple[int, ...]
    knows_shebang: bool


def parse_info(text: str) -> dict[str, str]:
    r"""The `key:value` lines of an INFO reply.

    >>> parse_info("# Server\r\nredis_mode:standalone\r\n")
    {'redis_mode': 'standalone'}
    """
    lines = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {key: value for key, colon, value in lines if colon}


def check_server(info: Mapping[str, str], url: str, *, allow_eviction: bool) -> ServerInfo:
    """Hold a server against the rules; `url` is safe to show.

    Raises `WrongServer` or `ConfigurationError`.
    """
    server = _identify(info, url)
    mode = info.get("server_mode") or info.get("redis_mode")
    if mode == "cluster":
        raise cluster_not_supported(f"{url} running in cluster mode")
    if info.get("role", "master") != "master":
        raise WrongServer(
            f"expected a primary at {url}, found a replica; point the store at its primary",
            code="store_replica",
        )
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and not allow_eviction:
        raise ConfigurationError(
            f"expected maxmemory-policy noeviction at {url}, found {policy}, with which the server "
            "may drop runs; set noeviction, or pass allow_eviction=True to accept the loss",
            code="store_evicts",
        )
    if info.get("aof_enabled") == "0":
        log.warning(
            "store_without_aof", url=url, hint="set appendonly yes, or a restart loses runs"
        )
    return server


def unverified(url: str, reason: str) -> ServerInfo:
    """Go on without INFO, after saying so in one line."""
    log.warning("store_could_not_verify", url=url, reason=reason)
    return ServerInfo(product="unknown", version=(), knows_shebang=True)


def _identify(info: Mapping[str, str], url: str) -> ServerInfo:
    valkey = info.get("valkey_version")
    text = valkey or info.get("redis_version")
    if text is None:
        raise WrongServer(
            f"expected a Valkey or Redis server at {url}, found one without a version"
        )
    version = tuple(int(part) for part in text.split(".")[:3] if part.isdigit())
    product, least = ("Valkey", LEAST_VALKEY) if valkey else ("Redis", LEAST_REDIS)
    if version < least:
        raise WrongServer(
            f"expected Valkey ≥ 7.2 or Redis ≥ 6.2 at {url}, found {product} {text}; upgrade it",
            code="store_too_old",
        )
    return ServerInfo(
        product=product, version=version, knows_shebang=bool(valkey) or version >= KNOWS_SHEBANG
    )
