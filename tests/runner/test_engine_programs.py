"""Random bodies, interrupted at random: what they come to does not depend on the interruptions."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from pyrula.workflows.engine.context import Context
from pyrula.workflows.engine.env import Limits
from pyrula.workflows.engine.failures import RemoteError
from pyrula.workflows.engine.retry import Retry
from pyrula.workflows.stores.base import AppendReply
from pyrula.workflows.stores.errors import StoreUnavailable
from pyrula.workflows.stores.events import RunComplete, StepDone, StepError
from tests.support.attempts import Posted, Run

# A program is a list of words; a list among them is a gather of programs, which may not sleep.
WORDS = st.sampled_from(["step", "random", "uuid", "fail", "retried"])
LEGS = st.recursive(
    st.lists(WORDS, max_size=3),
    lambda inner: st.lists(WORDS | st.lists(inner, max_size=3), max_size=3),
    max_leaves=8,
)
PROGRAMS = st.lists(WORDS | st.just("sleep") | st.lists(LEGS, max_size=3), max_size=6)


async def follow(ctx: Context, program: list[Any], chance: random.Random) -> list[Any]:
    async def dawdle(value: int) -> tuple[int, ...]:
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        return (value,)

    async def fail() -> None:
        await dawdle(0)
        raise ValueError("as written")

    found: list[Any] = []
    for position, word in enumerate(program):
        if isinstance(word, list):
            legs = cast("list[list[Any]]", word)
            found.append(await ctx.gather(*[follow(ctx, leg, chance) for leg in legs]))
        elif word == "step":
            found.append(await ctx.step("step", dawdle, position))
        elif word == "random":
            found.append(ctx.random())
        elif word == "uuid":
            found.append(str(ctx.uuid()))
        elif word == "sleep":
            await ctx.sleep(1)
        else:
            policy = Retry(attempts=2, first_delay=0.0 if word == "fail" else 10.0)
            try:
                await ctx.step("fail", fail, retry=policy)
            except RemoteError as error:
                found.append(error.message)
    return found


class Interrupted(Run):
    """Loses the store now and then, before or after a write took effect."""

    chance: random.Random

    def post(self, first_seq: int, events: Any) -> Posted:
        if self.chance.random() < 0.1:
            return Posted(AppendReply(0, self.flags), arrived=False)
        return super().post(first_seq, events)

    def _write(self, first_seq: int, events: Any) -> AppendReply:
        draw = self.chance.random()
        if draw < 0.04:
            raise StoreUnavailable("lost on its way")
        reply = super()._write(first_seq, events)
        if draw > 0.96:
            raise StoreUnavailable("answer lost")
        return reply


async def to_the_end(run: Run, chance: random.Random) -> int:
    """Attempts until the run is over; how many it took."""
    for number in range(1, 500):
        try:
            outcome = await run.attempt()
        except StoreUnavailable:
            raise AssertionError("an outage came out of the engine") from None
        if outcome.kind == "parked":
            run.now_ms = max(run.now_ms, outcome.due_ms or 0)
        elif isinstance(run.last(), RunComplete):
            return number  # only the answer was lost
        elif outcome.kind == "store_lost":
            if chance.random() < 0.5:  # the worker requeues with what may not have arrived
                Run._write(run, outcome.first_seq, outcome.unsaved)
        else:
            assert outcome.kind == "completed", (outcome, run.last())
            return number
    raise AssertionError("the run does not come to an end")


@settings(max_examples=60, deadline=None)
@given(program=PROGRAMS, seed=st.integers(0, 2**32), behind=st.booleans())
def test_interruptions_change_nothing(program: list[Any], seed: int, behind: bool) -> None:
    chance = random.Random(seed)

    async def body(ctx: Context) -> list[Any]:
        return await follow(ctx, program, chance)

    async def both() -> None:
        # Retries that wait 10 s park on the main line; in a leg they hold their slot.
        limits = Limits(step_boundary_durability=not behind, event_buffer_size=5)
        calm = Run(body)
        await to_the_end(calm, chance)
        wild = Interrupted(body, limits=limits)
        wild.chance = chance
        await to_the_end(wild, chance)
        assert wild.result() == calm.result()
        settled = Counter(
            event.p
            for event in wild.journal
            if isinstance(event, StepDone) or (isinstance(event, StepError) and event.final)
        )
        assert set(settled.values()) <= {1}

    asyncio.run(both())
