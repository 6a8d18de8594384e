"""Random programs of transitions, played on the memory store and, side by side, on others.

Owns the rules that such a program is made of and what must hold after each of them: the invariants
of a run protocol (V1, V2, V5, V7, V12), and that every store answers as the memory store does.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyrula.workflows.stores.base import Claimed, ClaimRequest, Lock, RunRef, Store, Submission
from pyrula.workflows.stores.errors import PyrulaError
from pyrula.workflows.stores.events import RunRequeued, StepDone, StepPending, pack, unpack
from tests.conformance.invariants import check_conservation, check_fifo, check_history
from tests.conformance.stage import COMPLETE, INIT, LONG_MS, WORKFLOW, Backend, MemoryBackend
from tests.support.clock import FixedRng

RUN_IDS = st.sampled_from(["a", "b", "c", "d"])
SLOTS = st.integers(0, 2)
PICKS = st.integers(0, 1_000)
RARELY = st.sampled_from([False, False, False, True])
MOST_FUTILE = 2  # keeps backoffs, which have to pass on a real server, under half a second


@dataclass
class Attempt:
    """What one claimer believes of a run it was given, true or no longer."""

    lock: Lock
    length: int
    sent: list[bytes] = field(default_factory=list[bytes])

    def event(self, *, progress: bool) -> bytes:
        """An event that carries its writer's token."""
        path = f"{self.lock.ref.run_id}.{self.length + len(self.sent)}"
        if progress:
            return pack(StepDone(t=1, p=path, r=msgspec.Raw(msgspec.json.encode(self.lock.token))))
        return pack(StepPending(t=1, p=path, n=self.lock.token, h="h"))


class Program(RuleBasedStateMachine):
    """One random program; `others` are compared with the memory store."""

    def __init__(self, others: Sequence[Backend] = ()) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self.memory = MemoryBackend()
        self.backends: list[Backend] = [self.memory, *others]
        self.stores: list[Store] = [backend.make(rng=FixedRng(0.0)) for backend in self.backends]
        self.generation = [0, 0, 0]
        self.claims: list[ClaimRequest] = []
        self.attempts: list[Attempt] = []
        self.journals: dict[str, list[bytes]] = {}

    @initialize()
    def start(self) -> None:
        for store in self.stores:
            self._runner.run(store.open())
        self.everywhere(lambda store: store.register(WORKFLOW, serving=True), ignore="store_id")
        for run_id in ("a", "b", "c"):
            self.submit(run_id, "d", 0)
        self.claim(slot=0, limit=2, brief=True)

    def teardown(self) -> None:
        for store in self.stores:
            self._runner.run(store.close())
        self._runner.close()

    # What all stores do alike

    def everywhere(self, call: Callable[[Store], Awaitable[Any]], *, ignore: str = "now_ms") -> Any:
        """Do it on every store; all must answer the same. A refusal is its exception's type."""
        answers = [self._runner.run(_outcome(call, store)) for store in self.stores]
        shown = [_comparable(answer, ignore) for answer in answers]
        for other in shown[1:]:
            assert other == shown[0]
        return answers[0]

    def elapse(self, ms: int) -> None:
        for backend in self.backends:
            self._runner.run(backend.elapse(ms))

    def member(self, slot: int) -> str:
        return f"m{slot}.{self.generation[slot]}"

    def futile(self, run_id: str) -> int:
        return self.memory.shard.runs[run_id].futile

    # Those who never own a run

    @rule(run_id=RUN_IDS, digest=st.sampled_from("dde"), delay_ms=st.sampled_from([0, 0, 1]))
    def submit(self, run_id: str, digest: str, delay_ms: int) -> None:
        submission = Submission(
            ref=RunRef(WORKFLOW, run_id, 0), init=INIT, digest=digest, delay_ms=delay_ms
        )
        self.everywhere(lambda store: store.submit(submission))

    @rule(run_id=RUN_IDS)
    def cancel(self, run_id: str) -> None:
        self.everywhere(lambda store: store.cancel(RunRef(WORKFLOW, run_id, 0)))

    # Claims, their repeats, and claims that arrive late

    @rule(slot=SLOTS, limit=st.integers(1, 3), brief=st.booleans())
    def claim(self, slot: int, limit: int, brief: bool) -> None:
        number = len(self.claims) + 1
        request = ClaimRequest(
            workflow=WORKFLOW,
            shard=0,
            incarnation=self.member(slot),
            n=number,
            nonce=f"{number:032x}",
            limit=limit,
            lock_ttl_ms=1 if brief else LONG_MS,
        )
        self.claims.append(request)
        waiting = sorted(self.memory.shard.queue)
        reply = self.everywhere(lambda store: store.claim(request))
        runs: list[Claimed] = reply.runs
        check_fifo(waiting, limit, [run.lock.ref.run_id for run in runs])
        self.attempts += [Attempt(lock=run.lock, length=run.length) for run in runs]

    @precondition(lambda self: self.claims)
    @rule(pick=PICKS)
    def repeat_a_claim(self, pick: int) -> None:
        request = self.claims[-1 - pick % len(self.claims)]
        self.everywhere(lambda store: store.claim(request))

    # Owners, and those who think they are

    @precondition(lambda self: self.attempts)
    @rule(pick=PICKS, progress=st.booleans(), again=st.integers(0, 2), gap=RARELY)
    def append(self, pick: int, progress: bool, again: int, gap: bool) -> None:
        attempt = self.attempt(pick)
        event = attempt.event(progress=progress)
        resent = attempt.sent[len(attempt.sent) - again :] if again <= len(attempt.sent) else []
        first = attempt.length + len(attempt.sent) + 1 - len(resent)
        if gap:
            self.everywhere(lambda store: store.append(attempt.lock, first + 9, [event]))
            return
        self.everywhere(lambda store: store.append(attempt.lock, first, [*resent, event]))
        attempt.sent.append(event)

    @precondition(lambda self: self.attempts)
    @rule(pick=PICKS, due=st.sampled_from(["none", "far", "past"]), times=st.integers(1, 2))
    def park(self, pick: int, due: Literal["none", "far", "past"], times: int) -> None:
        attempt = self.attempt(pick)
        event, first = self.next_event(attempt)

        async def park(store: Store) -> Any:
            now = (await store.fire_timers(WORKFLOW, 0, limit=0)).now_ms
            due_ms = {"none": None, "far": now + 10 * LONG_MS, "past": now}[due]
            return await store.park(attempt.lock, first, [event], due_ms=due_ms)

        for _ in range(times):
            self.everywhere(park)

    @precondition(lambda self: self.attempts)
    @rule(pick=PICKS, backoff=st.booleans(), times=st.integers(1, 2))
    def requeue(self, pick: int, backoff: bool, times: int) -> None:
        attempt = self.attempt(pick)
        event, first = self.next_event(attempt)
        backoff = backoff and self.futile(attempt.lock.ref.run_id) < MOST_FUTILE
        for _ in range(times):
            self.everywhere(
                lambda store: store.requeue(attempt.lock, first, [event], backoff=backoff)
            )

    @precondition(lambda self: self.attempts)
    @rule(pick=PICKS, times=st.integers(1, 2))
    def finish(self, pick: int, times: int) -> None:
        attempt = self.attempt(pick)
        first = attempt.length + len(attempt.sent) + 1
        for _ in range(times):
            self.everywhere(
                lambda store: store.finish(attempt.lock, first, [COMPLETE], status="completed")
            )

    @precondition(lambda self: self.attempts)
    @rule(pick=PICKS)
    def renew(self, pick: int) -> None:
        lock = self.attempt(pick).lock

        async def renew(store: Store) -> Any:
            renewer = store.renewer()
            try:
                return await asyncio.to_thread(renewer.renew, [lock], LONG_MS)
            finally:
                renewer.close()

        self.everywhere(renew)

    def attempt(self, pick: int) -> Attempt:
        """Mostly one that owns its run, sometimes any there ever was."""
        owning = [attempt for attempt in self.attempts if self.owns(attempt.lock)]
        some = owning if owning and pick % 4 else self.attempts
        return some[-1 - pick // 4 % len(some)]

    def owns(self, lock: Lock) -> bool:
        return self.memory.shard.runs[lock.ref.run_id].token == lock.token

    def next_event(self, attempt: Attempt) -> tuple[bytes, int]:
        """What the attempt writes next, and where."""
        event, first = attempt.event(progress=False), attempt.length + len(attempt.sent) + 1
        attempt.sent.append(event)
        return event, first

    # Time, death and recovery

    @precondition(lambda self: self.memory.shard.timers)
    @rule()
    def fire(self) -> None:
        soon = [0]
        for store in self.stores:
            soon += self._runner.run(_soon(store))
        self.elapse(max(soon) + 2)
        self.everywhere(
            lambda store: store.fire_timers(WORKFLOW, 0, limit=100), ignore="now_ms next_due_ms"
        )

    @precondition(lambda self: self.memory.shard.running)
    @rule(looks=st.integers(1, 2))
    def scan(self, looks: int) -> None:
        if any(self.futile(run_id) >= MOST_FUTILE for run_id in self.memory.shard.suspects):
            return
        for _ in range(looks):
            self.elapse(5)
            self.everywhere(
                lambda store: store.scan_orphans(WORKFLOW, 0, lock_ttl_ms=3),
                ignore="look_again_ms",
            )

    @precondition(lambda self: self.memory.shard.running)
    @rule(slot=SLOTS, counts=st.booleans(), times=st.integers(1, 2))
    def die(self, slot: int, counts: bool, times: int) -> None:
        dead = self.member(slot)
        held = sorted(self.memory.shard.held.get(dead, ()))
        lost = [run_id for run_id in held if counts and self.futile(run_id) < MOST_FUTILE]
        for _ in range(times):
            self.everywhere(
                lambda store: store.settle_death(
                    WORKFLOW, 0, incarnation=dead, cause="killed", lost=lost
                )
            )
        self.generation[slot] += 1

    # What holds after every transition

    @precondition(lambda self: len(self.stores) > 1)
    @invariant()
    def all_stores_know_the_same(self) -> None:
        for run_id in self.memory.shard.runs:
            self.everywhere(functools.partial(_standing, RunRef(WORKFLOW, run_id, 0)))

    @invariant()
    def every_run_is_in_one_place(self) -> None:
        check_conservation(self.memory.shard)

    @invariant()
    def histories_only_grow(self) -> None:
        for run_id, run in self.memory.shard.runs.items():
            check_history(self.journals.get(run_id, []), run)
            self.journals[run_id] = list(run.journal)


async def _outcome(call: Callable[[Store], Awaitable[Any]], store: Store) -> Any:
    async with asyncio.timeout(10):
        try:
            return await call(store)
        except PyrulaError as refusal:
            return type(refusal)


async def _soon(store: Store) -> list[int]:
    """How long until each timer that is not far away (ms)."""
    now = (await store.fire_timers(WORKFLOW, 0, limit=0)).now_ms
    runs = await store.list_runs(WORKFLOW, status=None, owner=None, limit=100)
    dues = [run.due_ms - now for run in runs if run.due_ms is not None]
    return [due for due in dues if due < LONG_MS]


async def _standing(ref: RunRef, store: Store) -> Any:
    """What is known of a run, without the times of day."""
    info = await store.info(ref)
    page = await store.read_journal(ref, 1)
    facts = msgspec.structs.replace(
        info, created_ms=0, updated_ms=0, due_ms=None if info.due_ms is None else 0
    )
    return facts, page


def _comparable(answer: Any, ignore: str) -> Any:
    """The answer as plain data, without what stores may differ in."""
    if isinstance(answer, type):
        return answer
    return _plain(answer, frozenset(ignore.split()))


def _plain(value: Any, ignore: frozenset[str]) -> Any:
    if isinstance(value, bytes):
        return _timeless(value)
    if isinstance(value, list | tuple):
        return [_plain(item, ignore) for item in cast("Sequence[Any]", value)]
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value)
        return {name: _plain(item, ignore) for name, item in fields.items() if name not in ignore}
    return value


def _timeless(event: bytes) -> Any:
    known = unpack(event)
    if isinstance(known, RunRequeued):
        return msgspec.structs.replace(known, t=0)
    return event
