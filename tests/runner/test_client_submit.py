"""Submitting: ids and keys, what is refused before anything is written, where a run is placed."""

from __future__ import annotations

import hashlib
import math
from datetime import timedelta
from typing import Any

import pytest

from pyrula.workflows.client import WorkflowClient
from pyrula.workflows.stores.base import Reservation, Store
from pyrula.workflows.stores.errors import ConflictError, InvalidInputError, PayloadError
from tests.runner.conftest import StoreFactory


async def submitting(store: Store) -> WorkflowClient:
    await store.open()
    return WorkflowClient(store)


async def test_a_key_is_one_run_however_often_it_is_used(make_store: StoreFactory) -> None:
    async with make_store() as store:
        client = await submitting(store)
        first = await client.submit("pay", {"a": 1, "b": 2}, idempotency_key="order-7")
        again = await client.submit("pay", {"b": 2, "a": 1}, idempotency_key="order-7")
        assert first.run_id == again.run_id == hashlib.sha256(b"pay\0order-7").hexdigest()[:32]
        assert (await client.submit("ship", idempotency_key="order-7")).run_id != first.run_id
        assert len(await store.list_runs("pay", status=None, owner=None, limit=9)) == 1
        with pytest.raises(ConflictError) as refused:
            await client.submit("pay", {"a": 1}, idempotency_key="order-7")
        assert refused.value.code == "idempotency_mismatch"


async def test_an_id_is_one_run_and_clashes_with_other_params(make_store: StoreFactory) -> None:
    async with make_store() as store:
        client = await submitting(store)
        await client.submit("pay", {"a": 1}, run_id="r1")
        assert (await client.submit("pay", {"a": 1}, run_id="r1")).run_id == "r1"
        with pytest.raises(ConflictError) as refused:
            await client.submit("pay", {"a": 2}, run_id="r1")
        assert refused.value.code == "run_exists"


async def test_ids_are_fresh_without_one(make_store: StoreFactory) -> None:
    async with make_store() as store:
        client = await submitting(store)
        runs = [await client.submit("pay") for _ in range(20)]
        assert len({run.run_id for run in runs}) == 20


@pytest.mark.parametrize("delay", [0, 30, 0.5, timedelta(minutes=1)])
async def test_a_delay_is_seconds_or_a_timedelta(make_store: StoreFactory, delay: Any) -> None:
    async with make_store() as store:
        client = await submitting(store)
        info = await (await client.submit("pay", delay=delay)).info()
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        due = 0 if info.due_ms is None else info.due_ms - info.created_ms
        assert due == pytest.approx(seconds * 1000, abs=50)


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"workflow": "no name"}, "invalid_workflow_name"),
        ({"workflow": ""}, "invalid_workflow_name"),
        ({"params": [1]}, "invalid_params"),
        ({"params": "text"}, "invalid_params"),
        ({"params": {1: "a"}}, "invalid_params"),
        ({"params": {"a": object()}}, "payload_not_serialisable"),
        ({"params": {"a": math.nan}}, "payload_not_serialisable"),
        ({"params": {"a": "\ud800"}}, "payload_not_serialisable"),
        ({"params": {"a": CYCLE}}, "payload_not_serialisable"),
        ({"params": {"a": "x" * 2_000_000}}, "payload_too_large"),
        ({"run_id": "a b"}, "invalid_run_id"),
        ({"run_id": "a~1"}, "invalid_run_id"),
        ({"run_id": "a.retry"}, "invalid_run_id"),
        ({"run_id": "{a}"}, "invalid_run_id"),
        ({"run_id": ""}, "invalid_run_id"),
        ({"idempotency_key": " "}, "invalid_idempotency_key"),
        ({"idempotency_key": "k" * 1_025}, "invalid_idempotency_key"),
        ({"owner": ""}, "invalid_owner"),
        ({"owner": "a\nb"}, "invalid_owner"),
        ({"delay": -1}, "invalid_delay"),
        ({"delay": math.nan}, "invalid_delay"),
        ({"delay": math.inf}, "invalid_delay"),
        ({"delay": timedelta(seconds=-1)}, "invalid_delay"),
        ({"delay": "soon"}, "invalid_delay"),
    ],
    ids=lambda given: str(given)[:30] if isinstance(given, str) else "-".join(given),
)
async def test_what_is_refused_leaves_nothing_behind(
    make_store: StoreFactory, arguments: dict[str, Any], code: str
) -> None:
    async with make_store() as store:
        client = await submitting(store)
        pay: dict[str, Any] = {"workflow": "pay"}
        with pytest.raises((InvalidInputError, PayloadError)) as refused:
            await client.submit(**(pay | arguments))
        assert refused.value.code == code
        assert await store.workflows() == []


async def test_a_client_adopts_the_recorded_shard_count(make_store: StoreFactory) -> None:
    async with make_store(shard_count=8) as store, make_store(shard_count=2) as other:
        await submitting(store)
        await store.register("pay", serving=True)
        client = await submitting(other)
        shards = {(await client.ref("pay", f"r{n}")).shard for n in range(100)}
        assert shards == set(range(8))
        run = await client.submit("pay", run_id="far")
        assert (await WorkflowClient(store).handle("pay", run.run_id).info()).status == "queued"


async def test_a_key_beside_an_id_keeps_the_id_it_was_first_given(make_store: StoreFactory) -> None:
    async with make_store() as store:
        client = await submitting(store)
        first = await client.submit("pay", {"a": 1}, run_id="r1", idempotency_key="order-7")
        again = await client.submit("pay", {"a": 1}, run_id="r2", idempotency_key="order-7")
        assert first.run_id == again.run_id == "r1"
        assert len(await store.list_runs("pay", status=None, owner=None, limit=9)) == 1
        with pytest.raises(ConflictError) as refused:
            await client.submit("pay", {"a": 2}, run_id="r1", idempotency_key="order-7")
        assert refused.value.code == "idempotency_mismatch"


async def test_who_finds_a_reservation_submits_the_run_of_a_submitter_that_died(
    make_store: StoreFactory,
) -> None:
    async with make_store() as store:
        client = await submitting(store)
        probe = await client.submit("pay", {"a": 1}, run_id="probe", idempotency_key="k0")
        digest = hashlib.sha256(b'pay\0{"a":1}').hexdigest()[:32]
        key_id = hashlib.sha256(b"pay\0k1").hexdigest()[:32]
        await store.reserve_key(key_id, Reservation("dead-1", digest))
        run = await client.submit("pay", {"a": 1}, run_id="mine", idempotency_key="k1")
        assert run.run_id == "dead-1"
        assert {await run.status(), await probe.status()} == {"queued"}
