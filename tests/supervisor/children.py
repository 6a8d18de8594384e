"""Fake workers for the pool: entries for `--entry tests.supervisor.children:<name>`.

Each writes what happens to it, a line of JSON a time, to the file that FAKE_JOURNAL names. They
speak the real channel and page, but know no store.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyrula.supervisor.certificate import Certificate, Frame
from pyrula.supervisor.exits import ExitCode
from pyrula.supervisor.link import (
    BootFailed,
    ChildSetup,
    Draining,
    Hint,
    Ready,
    Settle,
    Settled,
    Stats,
    Tick,
)
from pyrula.supervisor.page import Occupant, Phase, code_of

PATIENCE_MS = 30_000
SLOW_BOOT_S = 0.3


class Fake:
    """A worker that serves nothing until it is told to drain."""

    def __init__(self, setup: ChildSetup, *, acknowledges: bool = True) -> None:
        self.setup = setup
        self._acknowledges = acknowledges
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGTERM, _nothing)

    def say(self, event: str, **more: Any) -> None:
        """Write a line into the journal."""
        line = {"slot": self.setup.slot, "pid": os.getpid(), "event": event, "at": time.monotonic()}
        with _journal_path().open("ab", buffering=0) as journal:
            journal.write(json.dumps(line | more).encode() + b"\n")

    def ready(self) -> None:
        """Settle what nobody could settle, then say that we serve."""
        for certificate in self.setup.settle_first:
            self._settle(certificate, "settled first")
        self.setup.page.phase(Phase.READY)
        self.setup.page.loop_beat()
        self.say("ready")
        self.setup.channel.send(Ready())
        self.setup.channel.send(Stats(shards={"w": 4}, runs=1, loop_lag_p50_ms=0.5))

    def serve(self) -> int:
        """Answer the parent until TERM (0) or until it is gone (1)."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self.setup.channel, select.POLLIN)
        while True:
            heard = poll.poll(PATIENCE_MS)
            assert heard, "the test has forgotten this child"
            for message in self.setup.channel.receive():
                self._handle(message)
            if self.setup.channel.closed:
                return ExitCode.FAILED
            with contextlib.suppress(BlockingIOError):
                if signal.SIGTERM in os.read(self._wake, 16):
                    self.setup.channel.send(Draining())
                    self.say("draining")
                    return ExitCode.OK

    def _handle(self, message: object) -> None:
        match message:
            case Settle(certificate=certificate):
                self._settle(certificate, "settle")
            case Hint(got=got):
                self.say("hint", got=got)
            case Tick():
                self.say("tick")
            case _:
                self.say("unexpected", message=repr(message))

    def _settle(self, certificate: Certificate, event: str) -> None:
        self.say(event, certificate=json.loads(certificate.to_json()))
        if self._acknowledges:
            self.setup.channel.send(Settled(id=certificate.id, got={"w": [1, 2]}))


def serve(setup: ChildSetup) -> int:
    """Serve, with one run inside a step and another open."""
    fake = Fake(setup)
    page = setup.page
    for slot, name in enumerate(("busy", "idle")):
        page.open(slot, Occupant(run_id=f"{name}-{setup.slot}", workflow="w", token="1.t", epoch=1))
    page.step(0, "0/1", "work")
    page.in_step(0, True)
    page.enter(code_of(0))
    fake.ready()
    return fake.serve()


def plain(setup: ChildSetup) -> int:
    """Serve."""
    fake = Fake(setup)
    fake.ready()
    return fake.serve()


def only_slot_2_acknowledges(setup: ChildSetup) -> int:
    """Slots 0 and 1 take certificates and never answer."""
    fake = Fake(setup, acknowledges=setup.slot == 2)
    fake.ready()
    return fake.serve()


def slow(setup: ChildSetup) -> int:
    """Takes a while to get ready, with the default action of TERM, as while importing."""
    select.select([], [], [], SLOW_BOOT_S)
    return plain(setup)


def crashing(setup: ChildSetup) -> int:
    """Slot 0 gets ready and dies at once."""
    fake = Fake(setup)
    fake.ready()
    return 9 if setup.slot == 0 else fake.serve()


def never_ready(setup: ChildSetup) -> int:
    """Dies before it is ready and says nothing."""
    Fake(setup).say("booting")
    os.abort()


def hanging(setup: ChildSetup) -> int:
    """Never gets ready."""
    fake = Fake(setup)
    fake.say("booting")
    return fake.serve()


def failing(setup: ChildSetup) -> int:
    """Can't boot and says why."""
    frames = (Frame(file="app.py", line=3, function="<module>"),)
    setup.channel.send(
        BootFailed(
            code="module_failed", message="expected app, found no app", exit=1, frames=frames
        )
    )
    return ExitCode.CHILD_BOOT_FAILED


def only_first_boot_fails(setup: ChildSetup) -> int:
    """Slot 0 fails until slot 1 is ready."""
    if setup.slot == 0 and '"ready"' not in _journal():
        return failing(setup)
    return plain(setup)


def holding_the_gil(setup: ChildSetup) -> int:
    """Gets ready, then sits in a C call that holds the GIL."""
    fake = Fake(setup)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # it would end a mere sleep
    fake.ready()
    ctypes.PyDLL(None).sleep(30)
    return fake.serve()


def with_a_subprocess(setup: ChildSetup) -> int:
    """Has started a process, as a step may."""
    import subprocess

    fake = Fake(setup)
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    fake.say("started", child=started.pid)
    fake.ready()
    return fake.serve()


def with_descriptors(setup: ChildSetup) -> int:
    """Says which descriptors it has and how many threads."""
    fake = Fake(setup)
    names: list[str] = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            names.append(str(fd.readlink()))
    fake.say("descriptors", names=sorted(names), threads=threading.active_count())
    fake.ready()
    return fake.serve()


def telling(setup: ChildSetup) -> int:
    """Says what it was told."""
    fake = Fake(setup)
    told = {"loop": setup.loop, "app_dir": setup.app_dir, "workflows": setup.workflows}
    fake.say("told", **told)
    fake.ready()
    return fake.serve()


def flooding_or_deaf(setup: ChildSetup) -> int:
    """Slot 0 sends without end, slot 1 reads nothing; both leave at TERM by its default action."""
    fake = Fake(setup)
    signal.signal(signal.SIGTERM, _leave)
    fake.ready()
    while setup.slot == 0:
        setup.channel.send(Stats(runs=1))
    while True:
        signal.pause()


def _nothing(_: int, __: object) -> None:
    """The wake-up descriptor has the number."""


def _leave(_: int, __: object) -> None:
    os._exit(ExitCode.OK)


def _journal_path() -> Path:
    return Path(os.environ["FAKE_JOURNAL"])


def _journal() -> str:
    return _journal_path().read_text() if _journal_path().exists() else ""
