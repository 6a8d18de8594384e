"""Worker processes that die, hang or lose their store in the middle, on a real server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pyrula.workflows.client import RunHandle, WorkflowClient
from pyrula.workflows.engine.crashpoints import POINTS
from pyrula.workflows.stores.events import RunRequeued, StepDone, StepPending
from pyrula.workflows.stores.valkey.store import ValkeyStore
from tests.support.processes import StartWorker, WorkerProcess
from tests.support.until import eventually, until
from tests.support.valkey import ValkeyServer
from tests.support.workflows import effects

ALL = {"s0", "s1", "thread", "s3", "s4"}


@pytest.fixture
def start(tmp_path: Path, valkey_url: str, namespace: str) -> Iterator[StartWorker]:
    """Start workers, on the shared server unless told otherwise; killed at the end."""
    workers: list[WorkerProcess] = []

    def make(url: str = valkey_url, **options: Any) -> WorkerProcess:
        folder = tmp_path / f"worker{len(workers)}"
        workers.append(WorkerProcess(folder, url, namespace, **options))
        return workers[-1]

    yield make
    for worker in workers:
        worker.kill()


@asynccontextmanager
async def connected(url: str, namespace: str) -> AsyncGenerator[WorkflowClient]:
    """A client on the server."""
    store = ValkeyStore(url, namespace=namespace, shard_count=4)
    await store.open()
    client = WorkflowClient(store)
    try:
        yield client
    finally:
        await client.close()
        await store.close()


async def undone(handle: RunHandle) -> set[str]:
    """Steps whose outcome is not in the journal."""
    events = await handle.events()
    names = {event.p: event.n for event in events if isinstance(event, StepPending)}
    done = {names[event.p] for event in events if isinstance(event, StepDone)}
    return ALL - done


@pytest.mark.parametrize("point", POINTS)
async def test_a_worker_killed_at_any_point_loses_nothing_and_repeats_no_done_step(
    point: str, start: StartWorker, tmp_path: Path, valkey_url: str, namespace: str
) -> None:
    ledger = tmp_path / "ledger"
    async with connected(valkey_url, namespace) as client:
        # The third time that the point is reached, where it is reached so often.
        nth = 3 if point in {"after_pending", "after_step_body", "after_done"} else 1
        first = start(crash=f"{point}:kill:{nth}")
        handle = await client.submit("ledgered", {"ledger": str(ledger)})
        await eventually(lambda: not first.alive, 10)
        assert first.ended() == -signal.SIGKILL
        open_steps, before = await undone(handle), effects(ledger)
        start()
        assert await handle.result(timeout=15) == ["s0", "s1", "thread", "s3", "s4"]
        after = effects(ledger)
    assert {step for _, step in after} == ALL
    assert max(after.values()) <= 2
    for (run_id, step), count in before.items():
        assert after[run_id, step] == count + (step in open_steps)
    assert sum(after.values()) - len(ALL) <= 1


async def test_a_step_that_exits_in_its_first_tick_is_pending_in_the_journal(
    start: StartWorker, tmp_path: Path, valkey_url: str, namespace: str
) -> None:
    ledger = tmp_path / "ledger"
    async with connected(valkey_url, namespace) as client:
        first = start()
        handle = await client.submit("exits_once", {"ledger": str(ledger)})
        await eventually(lambda: not first.alive, 10)
        assert isinstance((await handle.events())[-1], StepPending)
        start()
        assert await handle.result(timeout=15) == "leave"
        assert list(effects(ledger).values()) == [2]


async def test_a_paused_owner_that_comes_back_is_refused_every_write(
    start: StartWorker, tmp_path: Path, valkey_url: str, namespace: str
) -> None:
    ledger, go_on = tmp_path / "ledger", tmp_path / "go on"
    async with connected(valkey_url, namespace) as client:
        zombie = start()
        params = {"ledger": str(ledger), "until": str(go_on)}
        handle = await client.submit("held", params)
        await eventually(lambda: effects(ledger), 10)
        zombie.send(signal.SIGSTOP)
        start()
        await eventually(lambda: effects(ledger)[handle.run_id, "wait"] == 2, 10)
        go_on.touch()
        assert await handle.result(timeout=10) == "after"
        journal = await handle.events()
        zombie.send(signal.SIGCONT)
        again = await client.submit("held", params)  # it serves again, and the old run is done
        assert await again.result(timeout=10) == "after"
        zombie.send(signal.SIGTERM)
        assert await asyncio.to_thread(zombie.ended) == 0
        assert await handle.events() == journal
    assert effects(ledger)[handle.run_id, "after"] == 1
    requeued = [event for event in journal if isinstance(event, RunRequeued)]
    assert [(event.reason, event.lost) for event in requeued] == [("worker_lost", 1)]


async def test_nothing_acknowledged_is_lost_when_the_server_restarts_under_load(
    start: StartWorker, tmp_path: Path, private_valkey: Callable[..., ValkeyServer], namespace: str
) -> None:
    ledger, server = tmp_path / "ledger", private_valkey(aof="always")
    async with connected(server.url, namespace) as client:
        workers = [start(server.url), start(server.url)]
        params = {"ledger": str(ledger), "pause": 0.02}
        handles = [await client.submit("ledgered", params) for _ in range(60)]
        await eventually(lambda: sum(effects(ledger).values()) > 60, 10)
        await asyncio.to_thread(server.restart)
        # By its first answer to PING the server is back: five seconds to resume, for all of them.
        progress = sum(effects(ledger).values())
        await eventually(lambda: sum(effects(ledger).values()) > progress, 5)
        for handle in handles:
            await handle.result(timeout=15)
        done = [await handle.events() for handle in handles]
        assert all(worker.alive for worker in workers)
    for events in done:
        assert sum(isinstance(event, StepDone) for event in events) == len(ALL)
        assert all(e.reason == "store_unavailable" for e in events if isinstance(e, RunRequeued))
    assert max(effects(ledger).values()) <= 2


async def test_a_server_that_is_paused_for_a_while_fails_nothing(
    start: StartWorker, tmp_path: Path, private_valkey: Callable[..., ValkeyServer], namespace: str
) -> None:
    ledger, server = tmp_path / "ledger", private_valkey()
    async with connected(server.url, namespace) as client:
        worker = start(server.url)
        params = {"ledger": str(ledger), "pause": 0.05}
        handles = [await client.submit("ledgered", params) for _ in range(20)]
        await eventually(lambda: effects(ledger), 10)
        server.pause()
        # Renewal gives up on an answer after more than three lifetimes of a lock.
        await eventually(lambda: worker.said("renewal_store_unavailable"), 10)
        server.resume()
        for handle in handles:
            await handle.result(timeout=15)
            assert (await handle.info()).lost == 0
        assert worker.alive


async def test_a_hung_sync_step_does_not_keep_the_process_from_ending(
    start: StartWorker, tmp_path: Path, valkey_url: str, namespace: str
) -> None:
    ledger, go_on = tmp_path / "ledger", tmp_path / "go on"
    async with connected(valkey_url, namespace) as client:
        worker = start(shutdown_grace="0.1", cancel_timeout="0.3")
        params = {"ledger": str(ledger), "until": str(go_on)}
        handle = await client.submit("hangs_in_a_thread", params)
        await eventually(lambda: effects(ledger), 10)
        worker.send(signal.SIGTERM)
        assert await asyncio.to_thread(worker.ended, 5) == 0
        assert worker.said("worker_thread_calls_still_running")
        events = await handle.events()
        assert [e.reason for e in events if isinstance(e, RunRequeued)] == ["drained"]


async def test_a_body_that_swallows_every_cancel_does_not_keep_the_process_from_ending(
    start: StartWorker, tmp_path: Path, valkey_url: str, namespace: str
) -> None:
    ledger = tmp_path / "ledger"
    async with connected(valkey_url, namespace) as client:
        worker = start(shutdown_grace="0.1", cancel_timeout="0.3")
        handle = await client.submit("never_unwinds", {"ledger": str(ledger)})
        await eventually(lambda: effects(ledger), 10)
        worker.send(signal.SIGTERM)
        assert await asyncio.to_thread(worker.ended, 5) == 0
        assert (handle.run_id, "swallowed") in effects(ledger)
        assert await handle.status() == "queued"


def test_an_idle_worker_hardly_uses_the_processor(start: StartWorker) -> None:
    worker = start(shards=64, orphan_scan_interval="60", timer_poll_interval_s="5", lock_ttl="30")
    begun, beats = worker.cpu_s(), 0

    def a_second_passed() -> bool:
        nonlocal beats
        beats += 1
        return beats > 400  # 5 ms apart

    until(a_second_passed, 20)
    used = (worker.cpu_s() - begun) / 2.0
    print(f"idle with 5 workflows: {used:.1%} of a processor")
    assert used < 0.15
