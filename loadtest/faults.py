"""Faults: which there are, how a seed makes a plan of them, and how each is done.

Owns the plan (the same seed gives the same plan) and what is held by SIGSTOP at a moment. Refuses
to wait for the system to be well before the next fault; only a new supervisor gets ready first.

A supervisor that sees more than 2N workers die in a minute takes it for a crash loop and waits, as
it should. So in a plan its own end follows at the latest then.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from loadtest.supervised import Supervised
from tests.support.valkey import ValkeyServer

Kind = Literal[
    "worker killed",
    "worker stopped",
    "worker drained",
    "supervisor hung up",
    "supervisor killed",
    "server stopped",
    "server killed",
    "scripts flushed",
]
WEIGHTS: dict[Kind, int] = {
    "worker killed": 30,
    "worker stopped": 22,
    "worker drained": 10,
    "supervisor hung up": 4,
    "supervisor killed": 6,
    "server stopped": 10,
    "server killed": 6,
    "scripts flushed": 12,
}
SHORT_S, LONG_S = (0.1, 3.0), (3.0, 6.0)  # long enough to lose the runs and come back
LONG_SHARE = 0.3
SKIPPED = "skipped, no worker ready"
STEP_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: `after_s` the one before it, on worker number `pick`, held for `for_s`."""

    kind: Kind
    after_s: float
    for_s: float
    pick: float


def plan(seed: int, procs: int) -> Iterator[Fault]:
    """Endless faults of every kind, the same for the same seed and number of workers."""
    rng = random.Random(seed)
    deaths = 0
    while True:
        kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if kind == "worker killed" and deaths == max(3, 2 * procs):
            kind = "supervisor killed"
        deaths = {"worker killed": deaths + 1, "supervisor killed": 0}.get(kind, deaths)
        yield Fault(
            kind=kind,
            after_s=rng.uniform(0.05, 1.0),
            for_s=rng.uniform(*(LONG_S if rng.random() < LONG_SHARE else SHORT_S)),
            pick=rng.random(),
        )


@dataclass(kw_only=True)
class Injector:
    """Does faults to a server and a supervised pool; `done` counts them."""

    server: ValkeyServer
    pool: Supervised
    done: Counter[str] = field(default_factory=Counter[str])
    resumed: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    _held: list[tuple[float, Callable[[], None]]] = field(
        default_factory=list[tuple[float, Callable[[], None]]]
    )

    def run(self, faults: Iterator[Fault], until_s: float) -> None:
        """Do one after the other until `until_s` (monotonic); then let everything go on."""
        for fault in faults:
            at = time.monotonic() + fault.after_s
            if at > until_s:
                break
            self._wait(at)
            self.apply(fault)
        self.heal()

    def apply(self, fault: Fault) -> None:
        """Do it now; a fault on a worker is skipped while none is ready."""
        if fault.kind.startswith("worker"):
            done = self._to_a_worker(fault)
        else:
            done = self._to_the_rest(fault)
        self.done[fault.kind if done else SKIPPED] += 1

    def heal(self) -> None:
        """Let everything go on, and see that it does."""
        self._let_go(all_of_them=True)
        assert self.pool.alive(), f"the supervisor ended by itself; see {self.pool.log}"

    def _to_a_worker(self, fault: Fault) -> bool:
        ready = self.pool.ready()
        if not ready:
            return False
        pid = ready[int(fault.pick * len(ready))]
        match fault.kind:
            case "worker killed":
                _send(pid, signal.SIGKILL)
            case "worker drained":
                _send(pid, signal.SIGTERM)
            case _:
                _send(pid, signal.SIGSTOP)
                self._hold(fault.for_s, lambda: self._resume(pid))
        return True

    def _to_the_rest(self, fault: Fault) -> bool:
        match fault.kind:
            case "supervisor hung up":
                self.pool.signal(signal.SIGHUP)
            case "supervisor killed":
                self.pool.kill()
                self.server.resume()
                self.pool.start()
            case "server stopped":
                self.server.pause()
                self._hold(fault.for_s, self.server.resume)
            case "server killed":
                self.server.restart()
            case _:
                # A stopped server flushes when it goes on.
                with contextlib.suppress(TimeoutError):
                    self.server.command("SCRIPT", "FLUSH", timeout=0.05)
        return True

    def _resume(self, pid: int) -> None:
        self.resumed.append((pid, time.monotonic()))
        _send(pid, signal.SIGCONT)

    def _hold(self, seconds: float, let_go: Callable[[], None]) -> None:
        self._held.append((time.monotonic() + seconds, let_go))

    def _let_go(self, *, all_of_them: bool = False) -> None:
        now = time.monotonic()
        due = [held for held in self._held if all_of_them or held[0] <= now]
        self._held = [held for held in self._held if held not in due]
        for _, let_go in due:
            let_go()

    def _wait(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            time.sleep(STEP_S)
            self._let_go()


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
