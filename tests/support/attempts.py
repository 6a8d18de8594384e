"""Attempts without a worker: one run's journal in memory, and bodies run on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyrula.workflows.engine.activation import Activation, Outcome
from pyrula.workflows.engine.env import Env, Limits
from pyrula.workflows.engine.registry import WorkflowDefinition
from pyrula.workflows.stores.base import AppendReply, Flag, ParkReply, Status
from pyrula.workflows.stores.errors import JournalRolledBack, StoreError
from pyrula.workflows.stores.events import (
    AnyEvent,
    Raw,
    RunInit,
    UnknownEvent,
    kind_of,
    pack,
    unpack,
)

Body = Callable[..., Coroutine[Any, Any, Any]]


class Posted:
    """A post; one that has not arrived never will."""

    def __init__(self, reply: AppendReply, *, arrived: bool = True) -> None:
        self._reply = reply
        self.arrived = arrived

    def __await__(self) -> Generator[Any, None, AppendReply]:
        yield from ()
        return self._reply


@dataclass
class Run:
    """A run with its journal in memory; `attempt` goes on with it.

    `asked` lists the journal calls; `refusal` is raised by every write from now on; `gate`, if set,
    holds every awaited append until it is set.
    """

    body: Body
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    limits: Limits = field(default_factory=Limits)
    timeout: float | None = None
    now_ms: int = 1_000
    events: list[bytes] = field(default_factory=list[bytes])
    asked: list[str] = field(default_factory=list[str])
    flags: Flag = Flag.NONE
    refusal: StoreError | None = None
    gate: asyncio.Event | None = None
    trusted: bool = True
    status: Status = "queued"
    activation: Activation | None = None

    def __post_init__(self) -> None:
        if not self.events:
            params = Raw(json.dumps(self.params).encode())
            self.events.append(pack(RunInit(t=self.now_ms, name="tested", params=params)))

    # The journal

    def post(self, first_seq: int, events: Sequence[bytes]) -> Posted:
        self.asked.append("post")
        try:
            return Posted(self._write(first_seq, events))
        except StoreError:
            return Posted(AppendReply(0, self.flags), arrived=False)

    def append(self, first_seq: int, events: Sequence[bytes]) -> Awaitable[AppendReply]:
        """As on a connection: written in the order of the calls, answered later."""
        self.asked.append("append")
        try:
            return self._answer(self._write(first_seq, events))
        except StoreError as error:
            return self._answer(error)

    async def _answer(self, answer: AppendReply | StoreError) -> AppendReply:
        await asyncio.sleep(0)
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(answer, StoreError):
            raise answer
        return answer

    async def park(
        self, first_seq: int, events: Sequence[bytes], *, due_ms: int | None
    ) -> ParkReply:
        self.asked.append("park")
        self._write(first_seq, events)
        if self.flags & Flag.CANCEL:
            return ParkReply(outcome="cancel", now_ms=self.now_ms)
        if due_ms is not None and due_ms <= self.now_ms:
            return ParkReply(outcome="due", now_ms=self.now_ms)
        self.status = "sleeping"
        return ParkReply(outcome="parked", now_ms=self.now_ms)

    async def finish(self, first_seq: int, events: Sequence[bytes], *, status: Status) -> None:
        self.asked.append("finish")
        self._write(first_seq, events)
        self.status = status

    def _write(self, first_seq: int, events: Sequence[bytes]) -> AppendReply:
        if self.refusal is not None:
            raise self.refusal
        if first_seq > len(self.events) + 1:
            raise JournalRolledBack(f"a gap before {first_seq}")
        self.events += events[len(self.events) + 1 - first_seq :]
        return AppendReply(len(self.events), self.flags)

    # The attempt

    async def attempt(self) -> Outcome:
        """Run the body on what is journaled so far."""
        self.activation = Activation(
            WorkflowDefinition("tested", self.body, self.timeout),
            "run-1",
            list(self.events),
            self,
            Env(
                now_ms=self.tick,
                call_sync=in_a_thread,
                lock_trusted=lambda: self.trusted,
                limits=self.limits,
                sleeper=self,
            ),
            flags=self.flags,
        )
        return await self.activation.run()

    async def sleep(self, seconds: float) -> None:
        """A `Sleeper` that moves store time instead."""
        self.now_ms += round(seconds * 1_000)
        await asyncio.sleep(0)

    def tick(self) -> int:
        """Store time, which goes on by one millisecond each time that somebody looks."""
        self.now_ms += 1
        return self.now_ms

    # What came of it

    @property
    def journal(self) -> list[AnyEvent | UnknownEvent]:
        return [unpack(raw) for raw in self.events]

    @property
    def kinds(self) -> list[str]:
        return [kind_of(event) for event in self.journal]

    def last(self) -> Any:
        return self.journal[-1]

    def result(self) -> Any:
        """The recorded result; fails the test if there is none."""
        assert kind_of(self.last()) == "run:complete", self.last()
        return json.loads(bytes(self.last().result))

    def again(self, body: Body | None = None, *, upto: int | None = None) -> Run:
        """Another worker's view of the same run, after `upto` events of it."""
        return replace(self, body=body or self.body, events=self.events[:upto], asked=[])


def in_a_thread(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Awaitable[Any]:
    return asyncio.to_thread(fn, *args, **kwargs)


async def completed(body: Body, **params: Any) -> Any:
    """The result of a body run from the start in one attempt."""
    run = Run(body, params)
    await run.attempt()
    return run.result()


async def failed(body: Body, **options: Any) -> Any:
    """The `run:error` that a body ends in."""
    run = Run(body, **options)
    outcome = await run.attempt()
    assert (outcome.kind, run.status) == ("failed", "failed"), run.last()
    return run.last()
