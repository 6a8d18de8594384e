"""The key space held against the store's schema table, and its content in comparable form."""

from __future__ import annotations

import re
from typing import Any, cast

from pyrula.workflows.stores.valkey.keys import SCHEMA, KeySpec
from tests.support.valkey import ValkeyServer

_READ: dict[str, tuple[str, ...]] = {
    "string": ("GET",),
    "hash": ("HGETALL",),
    "list": ("LRANGE", "0", "-1"),
    "set": ("SMEMBERS",),
    "zset": ("ZRANGE", "0", "-1", "WITHSCORES"),
}
_TIME = re.compile(rb"\b1[0-9]{12}\b")


def keys_of(server: ValkeyServer, namespace: str) -> list[str]:
    """All keys of a namespace, without it."""
    found: list[bytes] = server.command("KEYS", f"{namespace}:*")
    return sorted(key.decode().removeprefix(f"{namespace}:") for key in found)


def leaks(server: ValkeyServer, namespace: str) -> list[str]:
    """Keys that the schema table doesn't have, or that lack the type or TTL it gives them."""
    return [
        problem
        for key in keys_of(server, namespace)
        if (problem := _problem(server, namespace, key)) is not None
    ]


def content(server: ValkeyServer, namespace: str) -> dict[str, Any]:
    """Every key with its value, in which each moment in time is one and the same."""
    found: dict[str, Any] = {}
    for key in keys_of(server, namespace):
        full = f"{namespace}:{key}"
        kind = server.command("TYPE", full).decode()
        verb, *rest = _READ[kind]
        found[key] = _timeless(server.command(verb, full, *rest), in_order=kind != "set")
    return found


def _problem(server: ValkeyServer, namespace: str, key: str) -> str | None:
    full = f"{namespace}:{key}"
    spec = next((spec for spec in SCHEMA if spec.matches(key)), None)
    if spec is None:
        return f"{key} is not in the schema table"
    kind = server.command("TYPE", full).decode()
    if kind not in {spec.type, "none"}:
        return f"{key} is a {kind}, not a {spec.type}"
    lives_for_ever = server.command("PTTL", full) == -1
    if lives_for_ever and _must_expire(server, full, spec):
        return f"{key} has no TTL"
    return None


def _must_expire(server: ValkeyServer, full: str, spec: KeySpec) -> bool:
    if spec.ttl == "when finished":
        run = re.sub(r"}:ev:", "}:run:", full, count=1)
        ended = {b"completed", b"failed", b"cancelled", b"terminated", b"continued"}
        return server.command("HGET", run, "st") in ended
    return spec.ttl == "always"


def _timeless(value: Any, *, in_order: bool) -> Any:
    if isinstance(value, bytes):
        return _TIME.sub(b"T", value)
    if isinstance(value, list | tuple):
        items = [_timeless(item, in_order=True) for item in cast("list[Any]", value)]
        return items if in_order else sorted(items)
    return value
