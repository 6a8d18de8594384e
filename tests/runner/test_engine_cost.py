"""What a step costs the process that runs it: journal calls counted, CPU printed and bounded."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pyrula.workflows.engine.activation import Activation
from pyrula.workflows.engine.context import Context
from pyrula.workflows.engine.env import Env, Limits
from pyrula.workflows.engine.registry import WorkflowDefinition
from pyrula.workflows.stores.base import AppendReply, Flag, ParkReply, Status
from tests.support.attempts import Posted, Run, in_a_thread

STEPS = 2_000
# The goal is 12 µs on a quiet machine; the bound leaves room for a busy one.
MOST_US = 60.0
_REPLY = AppendReply(1, Flag.NONE)


class Nowhere:
    """A journal that keeps nothing and answers at once."""

    def post(self, first_seq: int, events: Sequence[bytes]) -> Posted:
        return Posted(_REPLY)

    async def append(self, first_seq: int, events: Sequence[bytes]) -> AppendReply:
        return _REPLY

    async def park(
        self, first_seq: int, events: Sequence[bytes], *, due_ms: int | None
    ) -> ParkReply:
        return ParkReply(outcome="parked", now_ms=0)

    async def finish(self, first_seq: int, events: Sequence[bytes], *, status: Status) -> None:
        return None


async def noop(number: int) -> int:
    return number


async def body(ctx: Context) -> None:
    for number in range(STEPS):
        await ctx.step("noop", noop, number)


async def test_a_step_costs_the_engine_few_microseconds() -> None:
    env = Env(now_ms=lambda: 1, call_sync=in_a_thread, limits=Limits(max_events=1_000_000))
    history = Run(body).events
    costs: list[float] = []
    for _ in range(5):
        activation = Activation(WorkflowDefinition("w", body), "r", history, Nowhere(), env)
        started = time.process_time()
        assert (await activation.run()).kind == "completed"
        costs.append((time.process_time() - started) / STEPS * 1e6)
    print(f"engine CPU per step: {min(costs):.1f} µs")
    assert min(costs) < MOST_US


async def test_replaying_a_step_costs_less_than_running_it() -> None:
    limits = Limits(max_events=1_000_000)
    run = Run(body, limits=limits)
    started = time.process_time()
    await run.attempt()
    live = time.process_time() - started
    again = run.again(upto=-1)
    started = time.process_time()
    await again.attempt()
    replayed = time.process_time() - started
    print(f"replay {replayed / STEPS * 1e6:.1f} µs a step, live {live / STEPS * 1e6:.1f} µs")
    assert again.asked == ["finish"]
    assert replayed < live
