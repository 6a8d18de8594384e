"""Who may keep runs: the checks at first contact, at each later one, and what they say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from pyrula.workflows.stores.base import ClaimRequest, RunRef, Submission
from pyrula.workflows.stores.errors import (
    ConfigurationError,
    PyrulaError,
    StoreEmptied,
    StoreError,
    StoreUnavailable,
    WrongServer,
)
from pyrula.workflows.stores.valkey.server import check_server
from pyrula.workflows.stores.valkey.store import ValkeyStore
from tests.support.keys import leaks
from tests.support.until import eventually_async
from tests.support.valkey import ValkeyServer

Make = Callable[..., ValkeyServer]
SECRET = "hunter2canary"
SUBMISSION = Submission(ref=RunRef("orders", "a", 0), init=b"{}", digest="d")
CLAIM = ClaimRequest(
    workflow="orders", shard=0, incarnation="me", n=1, nonce="x", limit=1, lock_ttl_ms=60_000
)
# What the store needs; TIME, PING and the commands of the scripts included.
ACL_RECIPE = (
    "+auth +select +ping +info +client|setname +subscribe +publish +time "
    "+eval +evalsha +script|load +exists +type +get +set +del +incr +pexpire "
    "+hget +hset +hsetnx +hmget +hdel +hexists +hincrby +llen +lrange +lindex +rpush +ltrim "
    "+sadd +srem +smembers +srandmember +zadd +zrem +zscore +zpopmin +zrange +zrevrange "
    "+zrangebyscore"
).split()


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncGenerator[ValkeyStore]:
    store = ValkeyStore(url, shard_count=1, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def refused(url: str, **options: Any) -> PyrulaError:
    with pytest.raises(PyrulaError) as caught:
        async with opened(url, **options):
            pass
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)
    return caught.value


async def test_a_cluster_is_refused_with_a_sentence(private_valkey: Make) -> None:
    error = await refused(private_valkey(cluster_enabled="yes").url)
    assert isinstance(error, ConfigurationError)
    assert error.code == "cluster_not_supported"


async def test_cluster_true_is_refused_before_connecting() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ValkeyStore("redis://localhost", cluster=True)
    assert caught.value.code == "cluster_not_supported"


async def test_a_replica_is_refused(private_valkey: Make) -> None:
    error = await refused(private_valkey(replicaof="127.0.0.1 1").url)
    assert isinstance(error, WrongServer)
    assert error.code == "store_replica"


async def test_a_server_that_evicts_is_refused_unless_that_is_accepted(
    private_valkey: Make,
) -> None:
    server = private_valkey(maxmemory_policy="allkeys-lru")
    assert (await refused(server.url)).code == "store_evicts"
    async with opened(server.url, allow_eviction=True) as store:
        await store.ping()


async def test_a_wrong_password_is_said_and_never_shown(private_valkey: Make) -> None:
    server = private_valkey(requirepass="right")
    wrong = server.url.replace(":right@", f":{SECRET}@")
    for url in (wrong, f"unix://{server.socket}"):
        error = await refused(url)
        assert isinstance(error, WrongServer)
        assert error.code == "store_auth"


async def test_a_database_that_does_not_exist_is_said(private_valkey: Make) -> None:
    server = private_valkey()
    error = await refused(f"{server.url}?db=99")
    assert isinstance(error, WrongServer)
    assert error.code == "store_wrong_database"


async def test_an_unreachable_server_is_unavailable_and_its_url_safe() -> None:
    error = await refused(f"redis://user:{SECRET}@127.0.0.1:1/0")
    assert isinstance(error, StoreUnavailable)
    assert "127.0.0.1:1" in str(error)


async def test_a_server_of_another_protocol_is_the_wrong_server() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    web = await asyncio.start_server(answer, "127.0.0.1")
    async with web:
        port = web.sockets[0].getsockname()[1]
        error = await refused(f"redis://127.0.0.1:{port}")
    assert isinstance(error, WrongServer)
    assert error.code == "store_wrong_server"


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        ({"redis_version": "6.0.20"}, False),
        ({"redis_version": "6.2.14"}, True),
        ({"redis_version": "7.2.4", "valkey_version": "7.2.5"}, True),
        ({"redis_version": "7.2.4", "valkey_version": "7.1.0"}, False),
        ({}, False),
    ],
)
def test_a_server_that_is_too_old_is_refused(version: dict[str, str], fits: bool) -> None:
    if fits:
        server = check_server(version, "redis://x", allow_eviction=False)
        assert server.knows_shebang is ("6.2" not in version["redis_version"])
    else:
        with pytest.raises(WrongServer):
            check_server(version, "redis://x", allow_eviction=False)


async def test_a_server_without_aof_is_warned_about_once(private_valkey: Make) -> None:
    server = private_valkey()
    with capture_logs() as logs:
        async with opened(server.url) as store:
            await store.ping()
    assert [entry["event"] for entry in logs] == ["store_without_aof"]


async def test_denied_info_is_one_line_and_no_refusal(private_valkey: Make) -> None:
    server = private_valkey(aof="always")
    server.command("ACL", "SETUSER", "app", "on", f">{SECRET}", "~*", "&*", "+@all", "-info")
    with capture_logs() as logs:
        async with opened(f"unix://app:{SECRET}@{server.socket}") as store:
            await store.register("orders", serving=True)
    assert [entry["event"] for entry in logs] == ["store_could_not_verify"]
    assert SECRET not in str(logs)


async def test_the_documented_acl_is_enough(private_valkey: Make) -> None:
    server = private_valkey(aof="always")
    server.command(
        "ACL", "SETUSER", "app", "on", f">{SECRET}", "~fenced:*", "&fenced:*", "-@all", *ACL_RECIPE
    )
    heard: list[object] = []
    async with opened(f"unix://app:{SECRET}@{server.socket}", namespace="fenced") as store:
        listener = await store.listen("client", heard.append, lambda: None)
        assert not listener.degraded
        await store.register("orders", serving=True)
        await store.submit(SUBMISSION)
        lock = (await store.claim(CLAIM)).runs[0].lock
        await store.append(lock, 2, [b"x"])
        await store.watch(lock.ref, "client")
        renewer = store.renewer()
        assert (await asyncio.to_thread(renewer.renew, [lock], 60_000))[0].held
        renewer.close()
        await store.scan_orphans("orders", 0, lock_ttl_ms=200_000)
        await store.fire_timers("orders", 0, limit=1)
        await store.finish(lock, 3, [b"end"], status="completed")
        await store.settle_death("orders", 0, incarnation="me", cause="", lost=None)
        assert len(await store.list_runs("orders", status=None, owner=None, limit=9)) == 1
        assert await store.find("a") == [lock.ref]
        await store.sweep("orders", 0)
        await eventually_async(lambda: _heard(heard))
        await listener.close()
    assert leaks(server, "fenced") == []


async def _heard(heard: list[object]) -> bool:
    return bool(heard)


async def test_a_listener_that_is_denied_is_degraded(private_valkey: Make) -> None:
    server = private_valkey(aof="always")
    server.command("ACL", "SETUSER", "app", "on", f">{SECRET}", "~*", "+@all")
    async with opened(f"unix://app:{SECRET}@{server.socket}") as store:
        listener = await store.listen("client", lambda _: None, lambda: None)
        assert listener.degraded
        await listener.close()


async def test_a_server_emptied_by_a_restart_is_loud_and_stays_so(private_valkey: Make) -> None:
    server = private_valkey()
    async with opened(server.url) as store:
        await store.register("orders", serving=True)
        server.restart()
        for _ in range(2):
            with pytest.raises(StoreEmptied):
                await _until_contact(store)


async def _until_contact(store: ValkeyStore) -> None:
    async def answered() -> bool:
        try:
            await store.submit(SUBMISSION)
        except StoreUnavailable:
            return False
        return True

    await eventually_async(answered)


async def test_a_server_emptied_under_a_live_connection_is_loud(private_valkey: Make) -> None:
    server = private_valkey()
    async with opened(server.url) as store:
        await store.register("orders", serving=True)
        server.command("FLUSHALL")
        with pytest.raises(StoreEmptied):
            await store.claim(CLAIM)
        with pytest.raises(StoreEmptied):
            await store.submit(SUBMISSION)


async def test_another_store_than_the_named_one_is_refused(valkey_url: str, namespace: str) -> None:
    async with opened(valkey_url, namespace=namespace) as store:
        known = store.store_id
    async with opened(valkey_url, namespace=namespace, store_id=known):
        pass
    assert (await refused(valkey_url, namespace=namespace, store_id="other")).code == (
        "store_emptied"
    )


async def test_a_store_can_be_opened_again_after_it_was_closed(
    valkey_url: str, namespace: str
) -> None:
    store = ValkeyStore(valkey_url, namespace=namespace)
    with pytest.raises(StoreError, match="await open"):
        await store.ping()
    for contacts in (1, 2):
        await store.open()
        await store.ping()
        assert store.contacts == contacts
        await store.close()
        await store.close()


@pytest.mark.parametrize(
    "options",
    [
        {"shard_count": 0},
        {"shard_count": 10_000},
        {"maxlen": 2},
        {"completed_ttl": 0},
        {"completed_ttl": float("nan")},
        {"shard_lease_ttl": -1},
        {"replay_page_bytes": 0},
        {"replay_page_size": 0},
    ],
)
def test_an_option_out_of_range_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))) as caught:
        ValkeyStore("redis://localhost", **options)
    assert caught.value.code == "invalid_option"


async def test_out_of_memory_is_unavailable_and_writes_nothing(private_valkey: Make) -> None:
    server = private_valkey(aof="everysec")
    async with opened(server.url) as store:
        await store.register("orders", serving=True)
        server.command("CONFIG", "SET", "maxmemory", "1mb")
        with pytest.raises(StoreUnavailable, match="OOM"):
            await store.submit(SUBMISSION)
        server.command("CONFIG", "SET", "maxmemory", "0")
        assert await store.submit(SUBMISSION)
