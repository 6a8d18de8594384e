"""A workflow name has one shard count, which workers must share and clients adopt."""

from __future__ import annotations

import asyncio

import pytest

from pyrula.workflows.stores.errors import ConfigurationError
from tests.conformance.stage import WORKFLOW, Stage


async def test_a_new_name_is_recorded_with_the_stores_shard_count(stage: Stage) -> None:
    registered = await stage.store.register("new", serving=False)
    assert registered.shard_count == stage.store.shard_count == 1
    assert registered.served is False
    assert registered.store_id


async def test_a_worker_with_another_count_is_refused(stage: Stage) -> None:
    other = await stage.another(shard_count=8)
    with pytest.raises(ConfigurationError) as refused:
        await other.register(WORKFLOW, serving=True)
    assert refused.value.code == "shard_count_mismatch"
    assert (await stage.store.register(WORKFLOW, serving=True)).shard_count == 1


async def test_a_client_with_another_count_adopts_what_is_recorded(stage: Stage) -> None:
    other = await stage.another(shard_count=8)
    assert (await other.register(WORKFLOW, serving=False)).shard_count == 1


async def test_a_name_recorded_by_a_client_binds_workers(stage: Stage) -> None:
    await stage.store.register("new", serving=False)
    other = await stage.another(shard_count=8)
    with pytest.raises(ConfigurationError):
        await other.register("new", serving=True)
    assert (await stage.store.register("new", serving=False)).served is False


async def test_a_name_is_served_once_a_worker_registered_it(stage: Stage) -> None:
    await stage.store.register("new", serving=False)
    await stage.store.register("new", serving=True)
    assert (await stage.store.register("new", serving=False)).served is True


async def test_all_names_of_a_store_have_its_id(stage: Stage) -> None:
    other = await stage.another(shard_count=8)
    first = await stage.store.register("first", serving=False)
    second = await other.register("second", serving=True)
    assert first.store_id == second.store_id


async def test_names_are_listed_sorted(stage: Stage) -> None:
    for name in ("b", "a"):
        await stage.store.register(name, serving=False)
    assert await stage.store.workflows() == sorted(["a", "b", WORKFLOW])


async def test_an_open_store_answers_and_has_made_contact(stage: Stage) -> None:
    await stage.store.ping()
    assert stage.store.contacts >= 1
    assert await stage.store.next_contact(0) == stage.store.contacts


async def test_the_next_contact_is_not_made_while_nothing_happens(stage: Stage) -> None:
    waiting = asyncio.ensure_future(stage.store.next_contact(stage.store.contacts))
    await stage.store.ping()
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_closing_twice_is_safe(stage: Stage) -> None:
    other = await stage.another()
    await other.close()
    await other.close()
    await stage.store.ping()
