"""The scripts on a real server: forgotten ones, opaque payloads, what they cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pyrula.workflows.stores.base import Claimed, ClaimRequest, Hint, RunRef, Submission
from pyrula.workflows.stores.valkey.store import ValkeyStore
from tests.support.keys import leaks
from tests.support.until import eventually
from tests.support.valkey import ValkeyServer

MOST = 1.3
DONE = b'{"e":"step:done","t":1796000000000,"p":"0","r":1}'
TRICKY = [
    b'{"e":"step:done","t":1,"p":"0","r":[]}',
    b'{"e":"step:done","t":1,"p":"1","r":{}}',
    b'{"e":"step:done","t":1,"p":"2","r":9007199254740993}',
    b'{"e":"step:done","t":1,"p":"3","r":1e308}',
    b'{"e":"step:done","t":1,"p":"4","r":"\\u0000\\n"}',
    b"\x00\xff\n not even JSON",
]


@pytest.fixture
def server(private_valkey: Callable[..., ValkeyServer]) -> ValkeyServer:
    """Of its own: these tests flush scripts and read the server's counters."""
    return private_valkey(aof="everysec")


@asynccontextmanager
async def opened(server: ValkeyServer, **options: Any) -> AsyncGenerator[ValkeyStore]:
    store = ValkeyStore(server.url, shard_count=1, **options)
    await store.open()
    try:
        await store.register("orders", serving=True)
        yield store
    finally:
        await store.close()


async def claim(store: ValkeyStore, n: int, *, limit: int = 1) -> list[Claimed]:
    request = ClaimRequest(
        workflow="orders",
        shard=0,
        incarnation="me",
        n=n,
        nonce=f"n{n}",
        limit=limit,
        lock_ttl_ms=600_000,
    )
    return (await store.claim(request)).runs


async def submit(store: ValkeyStore, *run_ids: str, init: bytes = b'{"e":"run:init"}') -> None:
    for run_id in run_ids:
        ref = RunRef("orders", run_id, 0)
        await store.submit(Submission(ref=ref, init=init, digest="d"))


async def test_scripts_flushed_under_load_are_reloaded_and_nothing_is_lost_or_doubled(
    server: ValkeyServer,
) -> None:
    async with opened(server) as store:
        await submit(store, *(f"r{i}" for i in range(20)))
        runs = await claim(store, 1, limit=20)
        renewer = store.renewer()

        async def work(run: Claimed) -> None:
            for seq in range(2, 200, 2):
                store.post(run.lock, seq, [b"pending"])
                reply = await store.append(run.lock, seq, [b"pending", DONE])
                assert reply.length == seq + 1

        async def flush() -> None:
            for _ in range(30):
                await asyncio.to_thread(server.command, "SCRIPT", "FLUSH")
                renewed = await asyncio.to_thread(renewer.renew, [run.lock for run in runs], 9_000)
                assert all(reply.held for reply in renewed)

        await asyncio.gather(flush(), *map(work, runs))
        renewer.close()
        assert server.calls("script|flush") == 30
        page = await store.read_journal(runs[0].lock.ref, 1)
        assert page.events[1:] == [b"pending", DONE] * 99


async def test_payloads_are_opaque_through_every_transition(server: ValkeyServer) -> None:
    hints: list[Hint] = []
    async with opened(server) as store:
        listener = await store.listen("client", hints.append, lambda: None)
        await submit(store, "a", init=TRICKY[-1])
        journal = [TRICKY[-1]]

        async def attempt(n: int) -> Claimed:
            run = (await claim(store, n))[0]
            assert run.page == journal
            return run

        run = await attempt(1)
        await store.append(run.lock, len(journal) + 1, TRICKY)
        journal += TRICKY
        await store.requeue(run.lock, len(journal) + 1, TRICKY, backoff=True)
        journal += TRICKY
        run = await attempt(2)
        await store.park(run.lock, len(journal) + 1, TRICKY, due_ms=None)
        journal += TRICKY
        await store.cancel(run.lock.ref)
        run = await attempt(3)
        await store.watch(run.lock.ref, "client")
        await store.finish(run.lock, len(journal) + 1, TRICKY, status="completed")
        journal += TRICKY
        await eventually(lambda: hints)
        await listener.close()
        assert hints[0].terminal == TRICKY[-1]
        assert (await store.watch(run.lock.ref, "client")).terminal == TRICKY[-1]
        assert (await store.read_journal(run.lock.ref, 1)).events == journal
    assert leaks(server, "default") == []


async def test_a_claim_with_huge_events_stays_within_its_budget(server: ValkeyServer) -> None:
    async with opened(server) as store:
        await submit(store, "small", "huge", "after")
        runs = await claim(store, 1, limit=3)
        await store.append(runs[1].lock, 2, [b"x" * 100_000] * 20)
        for run in runs:
            await store.requeue(run.lock, run.length + 1, [], backoff=False)
        first, huge, after = await claim(store, 2, limit=3)
        assert len(first.page) == len(after.page) == 1
        assert sum(map(len, huge.page)) <= 256 * 1024
        assert huge.length == 21
        page = await store.read_journal(huge.lock.ref, 1)
        assert len(page.events) == 21


async def test_more_watchers_than_are_kept_are_no_error(server: ValkeyServer) -> None:
    async with opened(server) as store:
        await submit(store, "a")
        for i in range(40):
            await store.watch(RunRef("orders", "a", 0), f"client-{i}")
        run = (await claim(store, 1))[0]
        await store.finish(run.lock, 2, [b"end"], status="completed")
        assert server.calls("publish") == 32


def cost(server: ValkeyServer) -> float:
    """Microseconds a script call took the server, since the counters were reset."""
    stats: str = server.command("INFO", "commandstats").decode()
    line = next(line for line in stats.splitlines() if line.startswith("cmdstat_evalsha:"))
    return float(line.split("usec_per_call=")[1].split(",")[0])


async def test_an_append_costs_the_same_in_a_journal_of_ten_thousand(server: ValkeyServer) -> None:
    async with opened(server) as store:
        await submit(store, "short", "long")
        short, long = await claim(store, 1, limit=2)
        for seq in range(2, 10_000, 500):
            await store.append(long.lock, seq, [DONE] * 500)
        lengths = {"short": 1, "long": (await store.info(long.lock.ref)).events}
        figures: dict[str, list[float]] = {"short": [], "long": []}
        for _ in range(5):
            for run in (short, long):
                name = run.lock.ref.run_id
                server.command("CONFIG", "RESETSTAT")
                for _ in range(200):
                    lengths[name] += 1
                    await store.append(run.lock, lengths[name], [DONE])
                figures[name].append(cost(server))
                if name == "short":  # back to about ten events
                    server.command("LTRIM", "default:{orders.0}:ev:short", 0, 9)
                    lengths[name] = 10
        report("append, 10 -> 10,000 events", min(figures["short"]), min(figures["long"]))


async def test_a_claim_costs_the_same_with_a_hundred_thousand_queued(server: ValkeyServer) -> None:
    # As many runs are stored both times: what is told apart is the queue, not how much of the
    # server's memory fits a CPU's cache.
    async with opened(server) as store:
        stored, n = 101_000, 0
        figures: dict[int, list[float]] = {1_000: [], 100_000: []}
        for start in range(0, stored, 5_000):
            server.command("EVAL", STORE_RUNS, 1, SHARD, start, min(start + 5_000, stored))
        for queued, costs in figures.items():
            for start in range(stored - queued, stored, 5_000):
                server.command("EVAL", QUEUE_RUNS, 1, SHARD, start, min(start + 5_000, stored))
            for _ in range(7):
                server.command("CONFIG", "RESETSTAT")
                for _ in range(100):
                    n += 1
                    assert len(await claim(store, n)) == 1
                costs.append(cost(server))
        report("claim, 1,000 -> 100,000 queued", min(figures[1_000]), min(figures[100_000]))


SHARD = "default:{orders.0}:"
STORE_RUNS = """
for i = ARGV[1], ARGV[2] - 1 do
  redis.call('HSET', KEYS[1] .. 'run:' .. i, 'st', 'queued', 'tok', '', 'sc', i)
  redis.call('RPUSH', KEYS[1] .. 'ev:' .. i, '{"e":"run:init"}')
end
"""
# The runs are claimed in an order of their own, as if they had come from anywhere.
QUEUE_RUNS = """
for i = ARGV[1], ARGV[2] - 1 do
  if redis.call('HGET', KEYS[1] .. 'run:' .. i, 'tok') == '' then
    redis.call('ZADD', KEYS[1] .. 'queue', i * 7919 % 1000003, i)
  end
end
"""


def report(what: str, small: float, large: float) -> None:
    ratio = large / small
    print(f"\n{what}: {small:.2f} -> {large:.2f} us on the server, ratio {ratio:.2f}")
    assert ratio <= MOST
