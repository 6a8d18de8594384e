"""Replay: the same calls get the same answers, and a body that changed is told so."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrula.workflows.engine.context import Context
from pyrula.workflows.engine.failures import RemoteError
from pyrula.workflows.engine.records import Records
from pyrula.workflows.engine.replay import reconstruct_state, replay_all_events
from pyrula.workflows.stores.errors import IncompatibleUpgradeError, RunNotFoundError
from pyrula.workflows.stores.events import AnyEvent, StepDone, StepPending, TimerFired, unpack
from pyrula.workflows.stores.memory.store import MemoryStore
from tests.support.attempts import Body, Run
from tests.support.sources import ROOT


async def echo(value: Any = None) -> Any:
    return value


async def story(ctx: Context) -> list[Any]:
    """Uses everything that replays."""
    told: list[Any] = [ctx.now().isoformat(), ctx.random(), str(ctx.uuid())]
    told.append(await ctx.step("one", echo, {"x": (1, 2)}))
    told.append(await ctx.gather(two_steps(ctx, "left"), two_steps(ctx, "right")))
    told.append(ctx.now().isoformat())
    try:
        await ctx.step("bad", lambda: 1 // 0)
    except RemoteError as error:
        told.append(error.type_name)
    await ctx.sleep(5)
    told += [ctx.now().isoformat(), ctx.random(), await ctx.step("last", echo, "end")]
    return told


async def two_steps(ctx: Context, name: str) -> list[Any]:
    first = await ctx.step(f"{name} 1", echo, name)
    return [first, ctx.random(), await ctx.step(f"{name} 2", echo, first), ctx.now().isoformat()]


async def to_the_end(run: Run) -> Run:
    while (outcome := await run.attempt()).kind == "parked":
        run.now_ms = outcome.due_ms or 0
    return run


async def test_every_prefix_of_a_journal_leads_to_the_same_calls() -> None:
    whole = await to_the_end(Run(story))
    for length in range(1, len(whole.events)):
        run = await to_the_end(whole.again(upto=length))
        assert calls_of(run) == calls_of(whole), f"after {length} events"
        done = [e.p for e in map(unpack, whole.events[:length]) if isinstance(e, StepDone)]
        again = [e.p for e in map(unpack, run.events[length:]) if isinstance(e, StepDone)]
        assert not set(done) & set(again)


def calls_of(run: Run) -> list[tuple[str, str, str]]:
    return sorted({(e.p, e.n, e.h) for e in run.journal if isinstance(e, StepPending)})


async def test_a_whole_journal_replays_to_the_same_result_without_running_a_step() -> None:
    whole = await to_the_end(Run(story))
    replayed = whole.again(upto=-1)
    await replayed.attempt()
    assert replayed.result() == whole.result()
    assert replayed.asked == ["finish"]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_legs_of_any_latency_have_the_same_identities(seed: int) -> None:
    chance = random.Random(seed)

    async def dawdle(value: int) -> int:
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        return value

    async def leg(ctx: Context, k: int) -> list[Any]:
        made = [await ctx.step("s", dawdle, 10 * k + n) for n in range(3)]
        return [*made, ctx.now().isoformat(), ctx.random()]

    async def body(ctx: Context) -> list[Any]:
        legs: list[Any] = await ctx.gather(*[leg(ctx, k) for k in range(4)])
        return [legs, ctx.now().isoformat()]

    async def twice() -> None:
        run = Run(body)
        await run.attempt()
        assert [h for _, _, h in calls_of(run)] == [h for _, _, h in calls_of(await fresh())]
        half = await to_the_end(run.again(upto=chance.randrange(1, len(run.events))))
        assert calls_of(half) == calls_of(run)
        again = run.again(upto=-1)
        await again.attempt()
        assert again.result() == run.result()

    async def fresh() -> Run:
        run = Run(body)
        await run.attempt()
        return run

    asyncio.run(twice())


# Divergence


async def original(ctx: Context) -> None:
    await ctx.step("a", echo, 1)
    ctx.random()
    await ctx.gather(ctx.step("b", echo, 2))
    await ctx.sleep(1)
    await ctx.step("c", echo, 3)


async def renamed(ctx: Context) -> None:
    await ctx.step("other", echo, 1)


async def other_inputs(ctx: Context) -> None:
    await ctx.step("a", echo, 2)


async def other_kind(ctx: Context) -> None:
    await ctx.sleep(1)


async def gather_for_step(ctx: Context) -> None:
    await ctx.gather(ctx.step("a", echo, 1))


async def random_for_step(ctx: Context) -> None:
    ctx.random()


async def step_for_random(ctx: Context) -> None:
    await ctx.step("a", echo, 1)
    await ctx.step("new", must_not_run)


async def step_for_gather(ctx: Context) -> None:
    await ctx.step("a", echo, 1)
    ctx.random()
    await ctx.step("b", must_not_run)


async def ends_early(ctx: Context) -> None:
    await ctx.step("a", echo, 1)


async def fails_early(ctx: Context) -> None:
    await ctx.step("a", echo, 1)
    raise ValueError("a new fault")


async def fewer_legs(ctx: Context) -> None:
    await ctx.step("a", echo, 1)
    ctx.random()
    await ctx.gather()


async def hides_it(ctx: Context) -> None:
    try:
        await ctx.step("other", must_not_run)
    except Exception:  # noqa: BLE001
        await ctx.step("instead", must_not_run)


async def hides_it_well(ctx: Context) -> None:
    try:
        await ctx.step("other", must_not_run)
    except BaseException:  # noqa: BLE001
        return


async def must_not_run() -> None:
    raise AssertionError("a step ran that nobody recorded")


@pytest.mark.parametrize(
    "changed",
    [
        *(renamed, other_inputs, other_kind, gather_for_step, random_for_step, step_for_random),
        *(step_for_gather, ends_early, fails_early, fewer_legs, hides_it, hides_it_well),
    ],
)
async def test_a_body_that_changed_ends_its_runs_in_incompatible_upgrade(changed: Body) -> None:
    whole = await to_the_end(Run(original))
    run = whole.again(changed, upto=-1)
    outcome = await run.attempt()
    assert (outcome.kind, run.last().code) == ("failed", "incompatible_upgrade"), run.last()
    assert "as recorded" in run.last().message
    assert set(run.last().detail) == {"path", "recorded", "asked"}
    assert run.kinds[len(whole.events) - 1 :] == ["run:error"]


async def test_a_result_that_no_longer_fits_its_declared_type_is_divergence() -> None:
    async def text() -> str:
        return "seven"

    async def number() -> int:
        return 7

    async def before(ctx: Context) -> None:
        await ctx.step("n", text)

    async def after(ctx: Context) -> None:
        await ctx.step("n", number)

    run = Run(before)
    await run.attempt()
    changed = run.again(after, upto=-1)
    await changed.attempt()
    assert changed.last().code == "incompatible_upgrade"


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b'{"e":"moon:landed","t":5,"p":"0"}', "incompatible_upgrade"),
        (b'{"e":"step:done","t":5,"p":"0","r":1}', "incompatible_upgrade"),
        (b'{"e":"step:done","t":5}', "journal_format"),
        (b"nonsense", "journal_format"),
    ],
)
async def test_a_journal_that_cannot_be_read_ends_the_run(raw: bytes, code: str) -> None:
    run = Run(story)
    run.events.append(raw)
    outcome = await run.attempt()
    assert outcome.kind == "failed"
    assert unpack(run.events[-1]).code == code  # type: ignore[union-attr]


# In doubt


async def test_a_step_in_doubt_runs_again() -> None:
    calls: list[int] = []

    async def body(ctx: Context) -> None:
        await ctx.step("s", lambda: calls.append(1))

    run = Run(body)
    await run.attempt()
    half = run.again(upto=2)
    assert [c.name for c in reconstruct_state(half.journal).in_doubt] == ["s"]
    await half.attempt()
    assert len(calls) == 2
    assert half.kinds == ["run:init", "step:pending", "step:pending", "step:done", "run:complete"]


async def test_a_step_that_the_body_gave_up_is_given_up_again_and_not_run() -> None:
    calls: list[int] = []

    async def stuck() -> None:
        calls.append(1)
        await asyncio.Event().wait()

    async def body(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.02):
                await ctx.gather(ctx.step("stuck", stuck), ctx.step("quick", echo))
        except TimeoutError:
            return str(await ctx.step("instead", echo, "gave up"))
        return "never"

    run = Run(body)
    await run.attempt()
    assert run.result() == "gave up"
    again = run.again(upto=-1)
    await again.attempt()
    assert (again.result(), len(calls)) == ("gave up", 1)


async def test_a_lost_note_that_a_timer_fired_changes_nothing() -> None:
    async def body(ctx: Context) -> list[str]:
        await ctx.sleep(1)
        woken = ctx.now().isoformat()
        return [woken, await ctx.step("s", echo, woken)]

    whole = await to_the_end(Run(body))
    fired = next(k for k, e in enumerate(whole.journal) if isinstance(e, TimerFired))
    run = await to_the_end(whole.again(upto=fired))
    assert calls_of(run)[0][:2] == calls_of(whole)[0][:2]
    replayed = await to_the_end(run.again(upto=-1))
    assert replayed.result() == run.result()


async def test_now_never_goes_back() -> None:
    async def body(ctx: Context) -> list[str]:
        times = [ctx.now()]
        for _ in range(3):
            await ctx.step("back", move_back)
            times.append(ctx.now())
        return [time.isoformat() for time in times]

    run = Run(body, now_ms=10_000)

    def move_back() -> None:
        run.now_ms -= 100

    await run.attempt()
    times = [datetime.fromisoformat(text) for text in run.result()]
    assert times == sorted(times)


# The rest


HASHES = """
from pyrula.workflows.engine.steps import inputs_of
print(inputs_of("s", ({"a", "b", "c", "d"}, {3: {"x", "y"}}), {"k": frozenset("pqrst")}, 999))
"""


def test_the_hash_of_inputs_does_not_depend_on_the_process() -> None:
    hashes = {
        subprocess.run(
            [sys.executable, "-c", HASHES],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(hashes) == 1


def test_how_far_the_recorded_body_got_is_known_for_every_leg() -> None:
    pending = [StepPending(p=path, n="s", h="0") for path in ("0", "1.0.0", "1.1.0", "1.1.2.0.1")]
    records = Records(reconstruct_state(pending).calls, lambda reason: None)
    overtaken = {p: records.overtaken(p) for p in ("0", "1.0.0", "1.1.0", "1.1.2.0.0", "1.0.1")}
    assert overtaken == {
        "0": True,
        "1.0.0": False,
        "1.1.0": True,
        "1.1.2.0.0": True,
        "1.0.1": False,
    }


def test_folding_goes_on_where_it_stopped() -> None:
    events: list[AnyEvent] = [StepPending(p="0", n="s", h="0"), StepDone(p="0")]
    state = reconstruct_state(events[1:], reconstruct_state(events[:1]))
    assert (state.length, state.in_doubt) == (2, [])


async def test_a_run_that_is_not_there_has_no_events_and_leaves_no_name() -> None:
    store = MemoryStore(4)
    await store.open()
    with pytest.raises(RunNotFoundError):
        await replay_all_events(store, "nobody", "nothing")
    assert await store.workflows() == []
    await store.close()


async def test_a_long_replay_lets_the_loop_turn() -> None:
    async def body(ctx: Context) -> None:
        for k in range(1_500):
            await ctx.step("s", echo, k)

    run = Run(body)
    await run.attempt()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await run.again(upto=-1).attempt()
    counting.cancel()
    assert turns >= 6


HISTORIES = sorted((ROOT / "tests" / "histories").glob("*.json"))


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_every_journal_that_was_ever_written_still_replays(path: Any) -> None:
    recorded = [json.dumps(event).encode() for event in json.loads(path.read_text())]
    run = Run(story, events=recorded[:-1])
    await run.attempt()
    assert json.loads(run.events[-1])["result"] == json.loads(recorded[-1])["result"]
    assert run.asked == ["finish"]


def test_there_are_recorded_histories() -> None:
    assert HISTORIES


def test_an_unknown_event_names_itself() -> None:
    with pytest.raises(IncompatibleUpgradeError, match="moon:landed"):
        reconstruct_state([unpack(b'{"e":"moon:landed","t":5}')])
