"""The set of children: forking them into slots, burying them, having their runs taken over.

Owns slots and restarts. A death is handled in one order: reap, read the dead page, keep the
certificate, have it settled by a ready child, replace. Without a ready child the next one to boot
settles first thing. Refuses signals and sockets of the outside world: those are `parent` and
`control`.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import structlog

from pyrula.supervisor.certificate import Cause, Certificate, Executing
from pyrula.supervisor.child import Birth, Child, State, fork
from pyrula.supervisor.exits import ExitCode
from pyrula.supervisor.graveyard import Graveyard, realm_of
from pyrula.supervisor.link import (
    BootFailed,
    Channel,
    ChildSetup,
    Draining,
    HealthReader,
    HealthWriter,
    Hint,
    Message,
    Ready,
    Settled,
    Stats,
    Tick,
)
from pyrula.supervisor.logs import Format
from pyrula.supervisor.oom import OomWatch
from pyrula.supervisor.page import Kind, Occupant, Page, Slot
from pyrula.supervisor.restarts import FIRST_S, Backoff, CrashWindow
from pyrula.supervisor.settlements import Settlements

log = structlog.get_logger()
TICK_S = 0.25
KILL_MARGIN_S = 5.0
BOOT_MARGIN_S = 5.0  # the child's own verdict comes first; its last try of the store takes a while
SERVED_S = 1.0  # a child killed after that had served; before, it may be killed for booting
UNBORN_DRAIN_S = 1.0  # what has never been ready holds nothing and needs no grace


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """What every child of the pool is told; times in seconds."""

    procs: int
    entry: str
    store_url: str = field(repr=False)
    namespace: str
    store_id: str | None = None
    shard_count: int | None
    workflows: tuple[str, ...]
    app_dir: str
    options: dict[str, str]
    loop: Literal["auto", "uvloop", "asyncio"]
    boot_budget: float
    page_runs: int
    page_threads: int
    drain_deadline: float
    run_dir: Path
    log_format: Format


@dataclass(frozen=True, kw_only=True)
class LastExit:
    """How a slot's last child ended; `at` in seconds since the epoch."""

    cause: str
    exit_code: int | None
    signal: int | None
    at: float


@dataclass(kw_only=True)
class Place:
    """A slot of the pool and its history. `fork_at` is monotonic, None while occupied or held."""

    number: int
    child: Child | None = None
    backoff: Backoff = field(default_factory=Backoff)
    restarts: int = 0
    fork_at: float | None = 0.0
    last_exit: LastExit | None = None
    boot_timed_out: bool = False

    @property
    def state(self) -> State:
        """Where the slot is in its life."""
        if self.child is not None:
            return self.child.state
        return State.HELD if self.fork_at is None else State.BACKOFF


class Pool:
    """N slots of children. Call `tick` often; it never blocks.

    `let_go` is called in each new child, to close what is the parent's.
    """

    def __init__(self, options: PoolOptions, let_go: Callable[[], None]) -> None:
        self.options = options
        self.places = [Place(number=n) for n in range(options.procs)]
        self.window = CrashWindow(options.procs)
        self.stopping = False
        self.overdue = False
        self.ever_ready = False
        # Once a child has met the store, an emptied or swapped server is never taken for it.
        self.store_id = options.store_id
        self.boot_failure: BootFailed | None = None
        self._let_go = let_go
        self._realm = realm_of(options.store_url, options.namespace)
        self._settlements = Settlements(Graveyard(options.run_dir / "certificates", self._realm))
        self._oom = OomWatch()
        self._look_at = 0.0
        self._kill_at: float | None = None
        self._kill_unborn_at: float | None = None

    @property
    def children(self) -> list[Child]:
        """Every child that has not been reaped."""
        return [place.child for place in self.places if place.child is not None]

    @property
    def ready(self) -> list[Child]:
        """Children that serve."""
        return [child for child in self.children if child.state is State.READY]

    @property
    def nobody_boots(self) -> bool:
        """Every slot is held after a failed boot."""
        return all(place.state is State.HELD for place in self.places)

    def in_crash_loop_for(self, now: float) -> float:
        """Seconds since the pool began to die faster than it lives, 0 if it doesn't."""
        looping = self.window.looping(now)
        return now - (self.window.looping_since or now) if looping else 0.0

    # What the parent calls

    def tick(self, now: float) -> None:
        """Fork what is due, ask again about deaths, kill what overstays its boot or its drain."""
        for place in self.places:
            if place.fork_at is not None and now >= place.fork_at:
                self._fork(place, now)
        self._settlements.ask(self._able_to_settle(), now)
        if now >= self._look_at:
            self._look_at = now + TICK_S
            self._look(now)

    def _look(self, now: float) -> None:
        """What is due four times a second, however often the parent wakes."""
        self._oom.look(now)
        for child in self.children:
            child.channel.flush()
            child.health.read()  # drained here; judged by the verdicts
            if child.state is State.BOOTING:
                self._check_boot(child, now)
        self._check_drain(now)

    def next_due(self, now: float) -> float:
        """Seconds until `tick` has something to do, at most 0.25."""
        times = [place.fork_at for place in self.places if place.fork_at is not None]
        asking = self._settlements.next_due(self._able_to_settle())
        if asking is not None:
            times.append(asking)
        return max(0.0, min([TICK_S, *(at - now for at in times)]))

    def receive(self, child: Child, now: float) -> None:
        """Handle what a child has sent."""
        for message in child.channel.receive():
            self._handle(child, message, now)

    def bury(self, child: Child, now: float) -> None:
        """Reap a child that ended, see to its runs and to its slot."""
        while child.channel.readable():
            self.receive(child, now)
        exit_code, number = child.reap()
        certificate = self._certify(child, exit_code, number)
        child.release()
        place = self.places[child.slot]
        place.child = None
        self._note_exit(place, certificate)
        drained = certificate.cause is Cause.COMMANDED and exit_code == ExitCode.OK
        if child.ready_at is not None and not drained:
            self._settlements.add(certificate)
            self._settlements.ask(self._able_to_settle(), now)
        if not self.stopping:
            self._plan_restart(place, child, certificate.cause, now)

    def drain(self, now: float) -> None:
        """Ask every child to finish its runs and end; forks nothing more."""
        self._stop_forking()
        self._kill_at = now + self.options.drain_deadline
        self._kill_unborn_at = now + UNBORN_DRAIN_S
        for child in self.children:
            child.commanded = True
            if child.state is State.READY:
                child.state = State.DRAINING
            child.signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL every child now, whatever it holds."""
        self._stop_forking()
        for child in self.children:
            child.commanded = True
            child.kill_group()

    # Forking

    def _fork(self, place: Place, now: float) -> None:
        try:
            birth = self._birth(place, now)
        except OSError as error:
            self._fork_failed(place, error, now)
            return
        try:
            child = fork(birth, now)
        except OSError as error:
            birth.give_up()
            self._fork_failed(place, error, now)
            return
        budget = self.options.boot_budget * (2 if place.boot_timed_out else 1)
        child.boot_deadline = now + budget + BOOT_MARGIN_S
        place.child, place.fork_at = child, None
        log.info("worker_forked", worker=place.number, pid=child.pid)

    def _birth(self, place: Place, now: float) -> Birth:
        page = Page(runs=self.options.page_runs, threads=self.options.page_threads)
        parent_end, child_end = Channel.pair()
        health_read, health_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        siblings = self.children

        def let_go() -> None:
            self._let_go()
            for sibling in siblings:
                os.close(sibling.pidfd)
                sibling.release()

        return Birth(
            setup=self._setup(place, child_end, page, HealthWriter(health_write), now),
            entry=self.options.entry,
            channel=parent_end,
            health=HealthReader(health_read),
            page=page,
            let_go=let_go,
            log_format=self.options.log_format,
        )

    def _fork_failed(self, place: Place, error: OSError, now: float) -> None:
        place.fork_at = now + place.backoff.failed(0.0, _jitter(), capped=self._counted_exit(now))
        log.error("fork_failed", worker=place.number, reason=error.strerror)

    def _setup(
        self, place: Place, channel: Channel, page: Page, health: HealthWriter, now: float
    ) -> ChildSetup:
        options = self.options
        name = f"{socket.gethostname()}-{os.getpid()}-{place.number}-{os.urandom(8).hex()}"
        page.set_incarnation(name)
        return ChildSetup(
            slot=place.number,
            incarnation=name,
            parent_pid=os.getpid(),
            channel=channel,
            page=page.writer(),
            health=health,
            store_url=options.store_url,
            namespace=options.namespace,
            store_id=self.store_id,
            shard_count=options.shard_count,
            workflows=options.workflows,
            app_dir=options.app_dir,
            loop=options.loop,
            options=options.options,
            settle_first=() if self.ready else self._settlements.certificates(),
            ready_by=now + options.boot_budget,
        )

    def _plan_restart(self, place: Place, child: Child, cause: Cause, now: float) -> None:
        if cause is Cause.BOOT and child.boot_failure is not None and not self.ever_ready:
            # Held until a sibling gets ready: if none does, this is what the supervisor ends with.
            self.boot_failure = self.boot_failure or child.boot_failure
            return
        place.restarts += 1
        if cause is Cause.COMMANDED:
            place.fork_at = now
            return
        failure = child.boot_failure if cause is Cause.BOOT else None
        # A store that is away is nobody's crash.
        waits_for_store = failure is not None and int(failure.exit) == ExitCode.STORE_UNREACHABLE
        ready_for = now - child.ready_at if child.ready_at is not None else 0.0
        if cause is Cause.KILLED and ready_for >= SERVED_S:
            # A stranger's deed says nothing of the code: kill -9 ten times is no crash loop.
            delay = FIRST_S * _jitter()
        else:
            looping = self.window.looping(now) if waits_for_store else self._counted_exit(now)
            delay = place.backoff.failed(ready_for, _jitter(), capped=looping)
        place.fork_at = now + delay
        log.warning(
            "worker_restarted", worker=place.number, cause=cause.value, delay_s=round(delay, 3)
        )

    def _counted_exit(self, now: float) -> bool:
        was_looping = self.window.looping(now)
        looping = self.window.exited(now)
        if looping and not was_looping:
            log.error("crash_loop", hint="workers die faster than they live; see worker_exited")
        return looping

    def _check_boot(self, child: Child, now: float) -> None:
        """Show where an endless boot hangs, then end it."""
        if now < child.boot_deadline - 2 * TICK_S:
            return
        if not child.stacks_asked:
            child.stacks_asked = True
            child.signal(signal.SIGUSR1)
        elif now >= child.boot_deadline and not child.boot_timed_out:
            log.error("worker_boot_timed_out", worker=child.slot, stack=child.stack())
            child.boot_timed_out = self.places[child.slot].boot_timed_out = True
            child.kill_group()

    def _check_drain(self, now: float) -> None:
        if self._kill_unborn_at is not None and now >= self._kill_unborn_at:
            self._kill_unborn_at = None
            for child in self.children:
                if child.ready_at is None:
                    child.kill_group()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self.overdue = True
            log.error("drain_overdue", workers=[child.slot for child in self.children])
            self.kill()

    def _stop_forking(self) -> None:
        self.stopping = True
        for place in self.places:
            place.fork_at = None

    # Death

    def _certify(self, child: Child, exit_code: int | None, number: int | None) -> Certificate:
        now_ns = time.monotonic_ns()
        found = child.page.reader().executing()
        return Certificate(
            incarnation=child.incarnation,
            slot=child.slot,
            pid=child.pid,
            cause=self._cause(child, exit_code, number),
            issued_at=time.time(),
            realm=self._realm,
            exit_code=exit_code,
            signal=number,
            executing=tuple(
                _executing(slot, slot.occupant, now_ns)
                for slot in found
                # What runs in the background belongs to an attempt that is over.
                if slot.occupant is not None and slot.kind is not Kind.BACKGROUND
            ),
        )

    def _cause(self, child: Child, exit_code: int | None, number: int | None) -> Cause:
        if child.commanded:
            return Cause.COMMANDED
        if child.ready_at is None:
            if child.boot_timed_out or exit_code == ExitCode.CHILD_BOOT_FAILED:
                return Cause.BOOT
            if number == signal.SIGTERM:
                return Cause.COMMANDED  # asked to stop before it could say so
        if number == signal.SIGKILL:
            return Cause.OOM if self._oom.explains(time.monotonic()) else Cause.KILLED
        return Cause.SIGNAL if number is not None else Cause.EXIT

    def _note_exit(self, place: Place, certificate: Certificate) -> None:
        place.last_exit = LastExit(
            cause=certificate.cause.value,
            exit_code=certificate.exit_code,
            signal=certificate.signal,
            at=certificate.issued_at,
        )
        expected = certificate.cause is Cause.COMMANDED
        (log.info if expected else log.warning)(
            "worker_exited",
            worker=place.number,
            pid=certificate.pid,
            cause=certificate.cause.value,
            exit_code=certificate.exit_code,
            signal=certificate.signal,
        )

    def _able_to_settle(self) -> list[Child]:
        """Ready children, else such that drain: they still speak to the store."""
        draining = [c for c in self.children if c.state is State.DRAINING and c.ready_at]
        return self.ready or draining

    # Messages

    def _handle(self, child: Child, message: Message, now: float) -> None:
        match message:
            case Ready():
                self.store_id = self.store_id or message.store_id or None
                self._on_ready(child, now)
            case Stats():
                child.stats = message
            case BootFailed():
                child.boot_failure = message
            case Draining():
                # Also at a TERM sent straight to the child: it is replaced, without backoff.
                child.commanded = True
                child.state = State.DRAINING
            case Settled():
                self._on_settled(child, message)
            case _:
                pass

    def _on_ready(self, child: Child, now: float) -> None:
        child.ready_at = now
        child.state = State.DRAINING if self.stopping else State.READY
        self.places[child.slot].boot_timed_out = False
        log.info("worker_ready", worker=child.slot, pid=child.pid)
        if not self.ever_ready:
            self.ever_ready = True
            for place in self.places:
                if place.state is State.HELD and not self.stopping:
                    place.fork_at = now + place.backoff.failed(0.0, _jitter())

    def _on_settled(self, child: Child, message: Settled) -> None:
        if not message.more:
            self._settlements.acknowledged(message.id)
            log.info("death_settled", incarnation=message.id, by=child.slot)
        for other in self.ready:
            if other is not child and message.got:
                other.channel.send(Hint(got=message.got))
            other.channel.send(Tick())


def _jitter() -> float:
    return random.random()


def _executing(slot: Slot, occupant: Occupant, now_ns: int) -> Executing:
    return Executing(
        slot=slot.index,
        seq=slot.seq,
        kind=slot.kind.name.lower(),
        workflow=occupant.workflow,
        run_id=occupant.run_id,
        token=occupant.token,
        epoch=occupant.epoch,
        step=slot.step_name,
        for_s=(now_ns - slot.entered_at) / 1e9,
    )
