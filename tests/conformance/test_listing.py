"""Runs are found by id and listed newest first, without reading their journals."""

from __future__ import annotations

import pytest

from pyrula.workflows.shards.hashing import shard_of
from pyrula.workflows.stores.base import RunRef, Store, Submission
from pyrula.workflows.stores.errors import RunNotFoundError
from tests.conformance.stage import COMPLETE, INIT, WORKFLOW, Stage, done


async def _listed(
    store: Store, *, status: str | None = None, owner: str | None = None, limit: int = 100
) -> list[str]:
    found = await store.list_runs(WORKFLOW, status=status, owner=owner, limit=limit)  # type: ignore[arg-type]
    return [run.ref.run_id for run in found]


async def test_what_is_known_of_a_run(stage: Stage) -> None:
    before = await stage.now_ms()
    ref = await stage.submit("a", owner="acme")
    info = await stage.info("a")
    assert (info.ref, info.status, info.owner) == (ref, "queued", "acme")
    assert before <= info.created_ms <= info.updated_ms <= await stage.now_ms()
    assert (info.due_ms, info.events, info.epoch, info.lost) == (None, 1, 0, 0)
    assert info.incarnation is None


async def test_info_counts_events(stage: Stage) -> None:
    lock = await stage.own("a")
    await stage.store.append(lock, 2, [done("0"), done("1")])
    assert (await stage.info("a")).events == 3


async def test_info_of_a_run_that_is_not_there_says_so(stage: Stage) -> None:
    with pytest.raises(RunNotFoundError):
        await stage.info("nowhere")


async def test_the_newest_runs_are_listed_first(stage: Stage) -> None:
    for run_id in ("b", "a", "c"):
        await stage.submit(run_id)
        await stage.elapse(5)
    assert await _listed(stage.store) == ["c", "a", "b"]


async def test_a_listing_stops_at_its_limit(stage: Stage) -> None:
    for run_id in ("a", "b", "c"):
        await stage.submit(run_id)
        await stage.elapse(5)
    assert await _listed(stage.store, limit=2) == ["c", "b"]


async def test_a_listing_is_filtered_by_status_and_owner(stage: Stage) -> None:
    finished = await stage.own("finished")
    await stage.store.finish(finished, 2, [COMPLETE], status="completed")
    await stage.submit("acme-1", owner="acme")
    await stage.submit("bolt-1", owner="bolt")
    assert await _listed(stage.store, status="completed") == ["finished"]
    assert await _listed(stage.store, owner="acme") == ["acme-1"]
    assert await _listed(stage.store, owner="acme", status="completed") == []
    assert set(await _listed(stage.store)) == {"finished", "acme-1", "bolt-1"}


async def test_a_listing_shows_runs_of_all_shards(stage: Stage) -> None:
    wide = await stage.another(shard_count=4)
    await wide.register("wide", serving=True)
    ids = [f"run-{number}" for number in range(12)]
    assert len({shard_of(run_id, 4) for run_id in ids}) == 4
    for run_id in ids:
        ref = stage.ref(run_id, workflow="wide", shard_count=4)
        await wide.submit(Submission(ref=ref, init=INIT, digest="d"))
        await stage.elapse(3)
    found = await wide.list_runs("wide", status=None, owner=None, limit=100)
    assert [run.ref.run_id for run in found] == ids[::-1]
    newest = await wide.list_runs("wide", status=None, owner=None, limit=3)
    assert [run.ref.run_id for run in newest] == ids[:-4:-1]


async def test_a_listing_shows_one_workflow_only(stage: Stage) -> None:
    await stage.store.register("other", serving=False)
    await stage.store.submit(Submission(ref=stage.ref("x", "other"), init=INIT, digest="d"))
    await stage.submit("a")
    assert await _listed(stage.store) == ["a"]


async def test_a_listing_of_an_unknown_workflow_is_empty(stage: Stage) -> None:
    assert await stage.store.list_runs("nowhere", status=None, owner=None, limit=5) == []


async def test_a_run_is_found_by_its_id_alone(stage: Stage) -> None:
    ref = await stage.submit("a")
    assert await stage.store.find("a") == [ref]
    assert await stage.store.find("b") == []


async def test_an_id_that_several_workflows_use_is_found_in_each(stage: Stage) -> None:
    wide = await stage.another(shard_count=4)
    await wide.register("wide", serving=False)
    here = await stage.submit("a")
    there = RunRef("wide", "a", shard_of("a", 4))
    await wide.submit(Submission(ref=there, init=INIT, digest="d"))
    found = await stage.store.find("a")
    assert sorted(found, key=lambda ref: ref.workflow) == [here, there]


async def test_a_hop_is_found_by_its_own_id_and_not_by_its_roots(stage: Stage) -> None:
    hop = await stage.submit("a~1")
    root = await stage.submit("a")
    assert await stage.store.find("a~1") == [hop]
    assert await stage.store.find("a") == [root]
