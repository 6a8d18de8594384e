"""One child: fork, signal, reap.

Owns the recipe of the fork and everything known of one child process. Refuses to know its siblings:
the set of children is `pool`.

The recipe: signals are blocked before the fork, so none is lost before the child has dispositions
of its own; the parent has one thread, so no lock is inherited held; the child dies with its parent
(PDEATHSIG, and a check that the parent didn't change in between), has its own process group, and no
descriptor of its parent's or siblings'.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import NoReturn

from setproctitle import setproctitle

from pyrula.supervisor import logs, procfs
from pyrula.supervisor.certificate import MAX_STACK_BYTES
from pyrula.supervisor.exits import ExitCode, SupervisorError
from pyrula.supervisor.link import BootFailed, Channel, ChildSetup, HealthReader, Stats
from pyrula.supervisor.page import Page, Phase
from pyrula.supervisor.signals import MANAGED

OOM_SCORE_STEP = 300
_PR_SET_PDEATHSIG = 1
# Loaded before any fork: dlopen in a forked child could meet a held loader lock.
_libc = ctypes.CDLL(None, use_errno=True)
# Of no meaning to a child. A handler, since SIG_IGN would be inherited by what its steps start.
_MEANINGLESS = (signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR2, signal.SIGHUP)


class State(Enum):
    """Where a slot is in its life."""

    BOOTING = "booting"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"
    BACKOFF = "backoff"
    HELD = "held"


@dataclass(kw_only=True)
class Child:
    """A forked child as the parent knows it; `since` and `ready_at` are monotonic seconds."""

    slot: int
    pid: int
    pidfd: int
    incarnation: str
    channel: Channel
    health: HealthReader
    page: Page
    stacks: int
    since: float
    state: State = State.BOOTING
    ready_at: float | None = None
    commanded: bool = False
    boot_deadline: float = 0.0
    boot_timed_out: bool = False
    stacks_asked: bool = False
    boot_failure: BootFailed | None = None
    stats: Stats | None = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; a child that is gone is never another process."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def kill_group(self) -> None:
        """SIGKILL the child and every process that its steps started."""
        # Before the reap the group id can't be reused, so this never hits a stranger.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.signal(signal.SIGKILL)

    def reap(self) -> tuple[int | None, int | None]:
        """(exit code, signal) of the ended process; frees what belongs to it but the page."""
        self.kill_group()
        result = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        os.close(self.pidfd)
        self.state = State.GONE
        if result is None or result.si_code == os.CLD_EXITED:
            return (result.si_status if result else None), None
        return None, result.si_status

    def stack(self) -> str:
        """What the child wrote to its stack dump on SIGUSR1, at most 16 KiB."""
        return os.pread(self.stacks, MAX_STACK_BYTES, 0).decode(errors="replace")

    def release(self) -> None:
        """Close channel and page, after the last look at them."""
        self.close_descriptors()
        self.page.close()

    def close_descriptors(self) -> None:
        """Close what this process holds of the child; a sibling must hold none of it."""
        self.channel.close()
        for fd in (self.health.fileno(), self.stacks):
            with contextlib.suppress(OSError):
                os.close(fd)


@dataclass(frozen=True, kw_only=True)
class Birth:
    """What a fork needs beside the setup: the parent's ends, and what the child must let go of."""

    setup: ChildSetup
    entry: str
    channel: Channel
    health: HealthReader
    page: Page
    let_go: Callable[[], None]
    log_format: logs.Format

    def give_up(self) -> None:
        """Close everything: there was no birth."""
        for fd in (self.health.fileno(), self.setup.health.fileno()):
            os.close(fd)
        self.channel.close()
        self.setup.channel.close()
        self.page.close()


def fork(birth: Birth, now: float) -> Child:
    """Fork a child that calls `birth.entry` (`module:function`) with its setup.

    Raises `SupervisorError` `parent_has_threads`, and `OSError` when the kernel refuses.
    """
    if procfs.threads() != 1:
        raise SupervisorError(
            "expected one thread in the supervisor before a fork, found more: a library has "
            "started one; find out which, forking beside a thread can hang the child",
            code="parent_has_threads",
            exit=ExitCode.FAILED,
        )
    with contextlib.suppress(OSError):  # a reader that is gone is no reason not to fork
        sys.stdout.flush()
        sys.stderr.flush()
    stacks = os.memfd_create(f"pyrula-stacks-{birth.setup.slot}")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, MANAGED)
    try:
        pid = os.fork()
        if pid == 0:
            _become_child(birth, stacks)
        pidfd = _pidfd(pid)
    except OSError:
        os.close(stacks)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    birth.setup.channel.close()
    os.close(birth.setup.health.fileno())
    return Child(
        slot=birth.setup.slot,
        pid=pid,
        pidfd=pidfd,
        incarnation=birth.setup.incarnation,
        channel=birth.channel,
        health=birth.health,
        page=birth.page,
        stacks=stacks,
        since=now,
    )


def _pidfd(pid: int) -> int:
    try:
        with contextlib.suppress(PermissionError):  # it has its group already
            os.setpgid(pid, pid)
        return os.pidfd_open(pid)
    except OSError:
        # A child that can't be watched must not live on unseen.
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _become_child(birth: Birth, stacks: int) -> NoReturn:
    setup = birth.setup
    status = int(ExitCode.FAILED)
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != setup.parent_pid:
            os._exit(ExitCode.FAILED)
        with contextlib.suppress(PermissionError):
            os.setpgid(0, 0)
        _default_signals()
        birth.let_go()
        birth.channel.close()
        os.close(birth.health.fileno())
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False)
        _prefer_us_when_memory_ends()
        random.seed()
        logs.configure(birth.log_format, slot=setup.slot)
        setproctitle(f"pyrula: worker {setup.slot}")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, MANAGED)
        module, _, name = birth.entry.partition(":")
        status = int(getattr(import_module(module), name)(setup))
    except BaseException as error:  # noqa: BLE001 - nothing may escape into the parent's stack
        sys.excepthook(type(error), error, error.__traceback__)
        if birth.page.reader().phase < Phase.READY:
            status = _boot_failed(setup, error)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _boot_failed(setup: ChildSetup, error: BaseException) -> int:
    """An error that the entry did not foresee; no restart will help as long as nobody is ready."""
    message = f"expected the worker to start, found {type(error).__name__}: {error}"
    setup.channel.send(BootFailed(code="boot_failed", message=message, exit=1))
    return int(ExitCode.CHILD_BOOT_FAILED)


def _prefer_us_when_memory_ends() -> None:
    """The kernel shall take a child, which is replaced, and not the parent."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+b", buffering=0) as file:
        file.write(b"%d" % min(1000, int(file.read()) + OOM_SCORE_STEP))


def _default_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in MANAGED:
        signal.signal(number, signal.SIG_DFL)
    for number in _MEANINGLESS:
        signal.signal(number, _do_nothing)


def _do_nothing(_: int, __: object) -> None:
    """A signal without a meaning here."""
