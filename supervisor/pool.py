"""The set of children: forking them into slots, burying them, having their runs taken over.

Owns slots, restarts and who settles a death. A death is handled in one order: reap, read the dead
page, keep the certificate, send it to a ready child, and to the next one if no answer comes in
500 ms. Without a ready child the next one to boot settles first thing. Refuses signals and sockets
of the outside world: those are `parent` and `control`.
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
    Settle,
    Settled,
    Stats,
    Tick,
)
from pyrula.supervisor.logs import Format
from pyrula.supervisor.page import Page, Slot
from pyrula.supervisor.restarts import Backoff, CrashWindow

log = structlog.get_logger()
ACKNOWLEDGE_S = 0.5
KILL_MARGIN_S = 5.0


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """What every child of the pool is told; times in seconds."""

    procs: int
    entry: str
    store_url: str = field(repr=False)
    namespace: str
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
    """A slot of the pool and its history; `fork_at` is monotonic, None while occupied."""

    number: int
    child: Child | None = None
    backoff: Backoff = field(default_factory=Backoff)
    restarts: int = 0
    fork_at: float | None = 0.0
    last_exit: LastExit | None = None


@dataclass(kw_only=True)
class Settlement:
    """A certificate on its way to being acted on."""

    certificate: Certificate
    asked: set[str] = field(default_factory=set[str])
    ask_again_at: float = 0.0


class Pool:
    """N slots of children. Call `tick` often; it never blocks."""

    def __init__(self, options: PoolOptions, let_go: Callable[[], None]) -> None:
        self.options = options
        self.places = [Place(number=n) for n in range(options.procs)]
        self.window = CrashWindow(options.procs)
        self.stopping = False
        self.ever_ready = False
        self.boot_failure: BootFailed | None = None
        self._let_go = let_go
        self._graveyard = Graveyard(
            options.run_dir / "certificates", realm_of(options.store_url, options.namespace)
        )
        self._kill_at: float | None = None
        self._settlements = {
            certificate.id: Settlement(certificate=certificate)
            for certificate in self._graveyard.left_over(time.time())
        }

    @property
    def children(self) -> list[Child]:
        """Every child that has not been reaped."""
        return [place.child for place in self.places if place.child is not None]

    @property
    def ready(self) -> list[Child]:
        """Children that serve."""
        return [child for child in self.children if child.state is State.READY]

    # The parent's steps

    def tick(self, now: float) -> None:
        """Fork what is due, ask again about deaths, kill what overstays its drain."""
        for place in self.places:
            if place.child is None and place.fork_at is not None and now >= place.fork_at:
                self._fork(place, now)
        for settlement in list(self._settlements.values()):
            if now >= settlement.ask_again_at:
                self._ask(settlement, now)
        for child in self.children:
            child.channel.flush()
            child.health.read()  # drained here; judged by the verdicts
            self._check_boot(child, now)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            log.error("drain_overdue", workers=[child.slot for child in self.children])
            self.kill()

    def next_due(self, now: float) -> float:
        """Seconds until `tick` has something to do, at most 0.25."""
        times = [p.fork_at for p in self.places if p.child is None and p.fork_at is not None]
        if self.ready:
            times += [s.ask_again_at for s in self._settlements.values()]
        if self._kill_at is not None:
            times.append(self._kill_at)
        return max(0.0, min([0.25, *(at - now for at in times)]))

    def drain(self, now: float) -> None:
        """Ask every child to finish its runs and end; forks nothing more."""
        self._stop_forking()
        self._kill_at = now + self.options.drain_deadline
        for child in self.children:
            child.commanded = True
            child.state = State.DRAINING
            child.signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL every child now, whatever it holds."""
        self._stop_forking()
        for child in self.children:
            child.commanded = True
            child.kill_group()

    def receive(self, child: Child, now: float) -> None:
        """Handle what a child has sent."""
        for message in child.channel.receive():
            self._handle(child, message, now)

    def bury(self, child: Child, now: float) -> None:
        """Reap a child that ended and see to its runs and its slot."""
        self.receive(child, now)
        place = self.places[child.slot]
        exit_code, number = child.reap()
        certificate = self._certify(child, exit_code, number)
        child.release()
        place.child = None
        place.last_exit = LastExit(
            cause=certificate.cause.value,
            exit_code=exit_code,
            signal=number,
            at=certificate.issued_at,
        )
        log.warning(
            "worker_exited",
            worker=place.number,
            pid=child.pid,
            cause=certificate.cause.value,
            exit_code=exit_code,
            signal=number,
        )
        drained = certificate.cause is Cause.COMMANDED and exit_code == ExitCode.OK
        if child.ready_at is not None and not drained:
            self._graveyard.keep(certificate)
            settlement = Settlement(certificate=certificate)
            self._settlements[certificate.id] = settlement
            self._ask(settlement, now)
        if not self.stopping:
            self._plan_restart(place, child, certificate.cause, now)

    # Forking

    def _fork(self, place: Place, now: float) -> None:
        parent_end, child_end = Channel.pair()
        health_read, health_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        page = Page(runs=self.options.page_runs, threads=self.options.page_threads)
        siblings = self.children

        def let_go() -> None:
            self._let_go()
            for sibling in siblings:
                os.close(sibling.pidfd)
                sibling.close_descriptors()

        birth = Birth(
            setup=self._setup(place, child_end, page, HealthWriter(health_write)),
            entry=self.options.entry,
            channel=parent_end,
            health=HealthReader(health_read),
            page=page,
            let_go=let_go,
            log_format=self.options.log_format,
        )
        try:
            place.child = fork(birth, now)
        except OSError as error:
            for end in (parent_end, child_end, page):
                end.close()
            os.close(health_read)
            os.close(health_write)
            place.fork_at = now + place.backoff.failed(0.0, random.random(), capped=True)
            log.error("fork_failed", worker=place.number, reason=error.strerror)
            return
        place.fork_at = None
        log.info("worker_forked", worker=place.number, pid=place.child.pid)

    def _setup(
        self, place: Place, channel: Channel, page: Page, health: HealthWriter
    ) -> ChildSetup:
        options = self.options
        incarnation = f"{socket.gethostname()}-{place.number}-{os.urandom(8).hex()}"
        page.set_incarnation(incarnation)
        pending = () if self.ready else tuple(s.certificate for s in self._settlements.values())
        return ChildSetup(
            slot=place.number,
            incarnation=incarnation,
            parent_pid=os.getpid(),
            channel=channel,
            page=page.writer(),
            health=health,
            store_url=options.store_url,
            namespace=options.namespace,
            shard_count=options.shard_count,
            workflows=options.workflows,
            app_dir=options.app_dir,
            loop=options.loop,
            options=options.options,
            settle_first=pending,
            boot_budget_s=options.boot_budget,
        )

    def _plan_restart(self, place: Place, child: Child, cause: Cause, now: float) -> None:
        if child.boot_failure is not None and not self.ever_ready:
            # If all fail the supervisor ends with this; if a sibling gets ready it is retried.
            self.boot_failure = child.boot_failure
        place.restarts += 1
        if cause is Cause.COMMANDED:
            place.fork_at = now
            return
        looping = self.window.exited(now)
        ready_for = now - child.ready_at if child.ready_at is not None else 0.0
        delay = place.backoff.failed(ready_for, random.random(), capped=looping)
        place.fork_at = now + delay
        log.warning("worker_restarted", worker=place.number, cause=cause.value, delay_s=delay)

    def _check_boot(self, child: Child, now: float) -> None:
        # The child gives up by itself within the budget; this is for one that can't.
        if child.state is State.BOOTING and now - child.since > 2 * self.options.boot_budget:
            log.error("worker_boot_timed_out", worker=child.slot, pid=child.pid)
            child.kill_group()

    def _stop_forking(self) -> None:
        self.stopping = True
        for place in self.places:
            place.fork_at = None

    # Death

    def _certify(self, child: Child, exit_code: int | None, number: int | None) -> Certificate:
        now_ns = time.monotonic_ns()
        reader = child.page.reader()
        executing = {slot.index: slot for slot in reader.executing()}
        executing |= {slot.index: slot for slot in reader.open_slots() if slot.in_step}
        return Certificate(
            incarnation=child.incarnation,
            slot=child.slot,
            pid=child.pid,
            cause=_cause(child, exit_code, number),
            issued_at=time.time(),
            realm=self._graveyard.realm,
            exit_code=exit_code,
            signal=number,
            executing=tuple(_executing(slot, now_ns) for slot in executing.values())[:100],
        )

    def _ask(self, settlement: Settlement, now: float) -> None:
        settlement.ask_again_at = now + ACKNOWLEDGE_S
        ready = self.ready
        if not ready:
            return
        fresh = [child for child in ready if child.incarnation not in settlement.asked]
        if not fresh:
            settlement.asked.clear()
            fresh = ready
        # The child with the newest loop beat is the likeliest to answer at once.
        chosen = max(fresh, key=lambda child: child.page.reader().loop_beat)
        settlement.asked.add(chosen.incarnation)
        chosen.channel.send(Settle(certificate=settlement.certificate))

    # Messages

    def _handle(self, child: Child, message: Message, now: float) -> None:
        match message:
            case Ready():
                self._on_ready(child, now)
            case Stats():
                child.stats = message
            case BootFailed():
                child.boot_failure = message
            case Draining():
                # A TERM sent straight to the child: it is replaced, without backoff.
                child.commanded = True
                child.state = State.DRAINING
            case Settled():
                self._on_settled(child, message)
            case _:
                pass

    def _on_ready(self, child: Child, now: float) -> None:
        self.ever_ready = True
        child.ready_at = now
        if not self.stopping:
            child.state = State.READY
        log.info("worker_ready", worker=child.slot, pid=child.pid)
        for settlement in self._settlements.values():
            settlement.ask_again_at = now

    def _on_settled(self, child: Child, message: Settled) -> None:
        if not message.more:
            self._settlements.pop(message.id, None)
            self._graveyard.forget(message.id)
        for other in self.ready:
            if other is not child:
                other.channel.send(Hint(got=message.got))
            other.channel.send(Tick())


def _executing(slot: Slot, now_ns: int) -> Executing:
    occupant = slot.occupant
    return Executing(
        slot=slot.index,
        seq=slot.seq,
        kind=slot.kind.name.lower(),
        workflow=occupant.workflow if occupant else "",
        run_id=occupant.run_id if occupant else "",
        token=occupant.token if occupant else "",
        epoch=occupant.epoch if occupant else 0,
        step=slot.step_name,
        for_s=(now_ns - slot.entered_at) / 1e9 if slot.entered_at else 0.0,
    )


def _cause(child: Child, exit_code: int | None, number: int | None) -> Cause:
    if child.commanded:
        return Cause.COMMANDED
    if child.boot_failure is not None or exit_code == ExitCode.CHILD_BOOT_FAILED:
        return Cause.BOOT
    if number == signal.SIGKILL:
        return Cause.KILLED
    return Cause.SIGNAL if number is not None else Cause.EXIT
