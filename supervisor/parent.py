"""The parent: one loop over everything that can happen to the pool.

Owns signals, the selector, and how a supervisor ends. Every wait is a timer; nothing here blocks or
sleeps. Handlers only put a number into the wake-up pipe, all work is done by `handle_<signal>` in the
loop. Refuses an event loop and threads, so that a fork is always safe.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from typing import Any

import structlog
from setproctitle import setproctitle

from pyrula.supervisor import status
from pyrula.supervisor.child import MANAGED, Child
from pyrula.supervisor.control import ControlSocket
from pyrula.supervisor.embedded import EmbeddedServer
from pyrula.supervisor.exits import ExitCode
from pyrula.supervisor.link import BootFailed
from pyrula.supervisor.pool import Pool, PoolOptions

log = structlog.get_logger()
_STOP_EXIT = {signal.SIGTERM: ExitCode.TERMINATED, signal.SIGINT: ExitCode.INTERRUPTED}


class Parent:
    """Runs a pool until it is told to stop; `run` returns the exit status.

    `crash_loop_exit_s` None keeps trying for ever.
    """

    def __init__(
        self,
        options: PoolOptions,
        control: ControlSocket,
        embedded: EmbeddedServer | None,
        crash_loop_exit_s: float | None,
    ) -> None:
        self._options = options
        self._control = control
        self._embedded = embedded
        self._crash_loop_exit_s = crash_loop_exit_s
        self._started_at = time.time()
        self._started = time.monotonic()
        self._pool = Pool(options, self._let_go)
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, Child] = {}
        self._exit: ExitCode | None = None
        self._stop_signal: signal.Signals | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> int:
        """The main loop."""
        self._install()
        try:
            while self._exit is None:
                now = time.monotonic()
                self._pool.tick(now)
                self._watch_new_children()
                self._tell_title()
                for key, _ in self._selector.select(self._pool.next_due(now)):
                    key.data()
                self._check_embedded()
                self._exit = self._exit or self._verdict(time.monotonic())
            return int(self._exit)
        finally:
            self._end()

    # Signals

    def handle_sigterm(self) -> None:
        """Drain; the second time kill."""
        self._stop(signal.SIGTERM)

    def handle_sigint(self) -> None:
        """Drain; the second time kill."""
        self._stop(signal.SIGINT)

    def handle_sigquit(self) -> None:
        """Kill at once."""
        self._stop_signal = self._stop_signal or signal.SIGTERM
        self._kill_now(signal.SIGTERM)

    def handle_sigusr1(self) -> None:
        """Dump the status to the log."""
        log.info("status", **status.document(self._pool, self._started_at, time.monotonic()))

    def handle_sigchld(self) -> None:
        """Children are watched by pidfd; nothing to do."""

    def _stop(self, number: signal.Signals) -> None:
        if self._stop_signal is not None:
            self._kill_now(number)
            return
        self._stop_signal = number
        log.info("supervisor_draining", signal=number.name)
        self._pool.drain(time.monotonic())

    def _kill_now(self, number: signal.Signals) -> None:
        log.warning("supervisor_killing", signal=number.name)
        self._pool.kill()
        self._exit = _STOP_EXIT.get(number, ExitCode.TERMINATED)

    # Steps of the loop

    def _install(self) -> None:
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in MANAGED:
            signal.signal(number, _only_wake)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, MANAGED)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._on_signals)
        self._selector.register(self._control, selectors.EVENT_READ, self._on_control)

    def _on_signals(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._wake_read, 64):
                name = signal.Signals(number).name.lower()
                getattr(self, f"handle_{name}", self.handle_sigchld)()

    def _on_control(self) -> None:
        self._control.serve(self._answer)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("command", "status") == "status":
            return status.document(self._pool, self._started_at, time.monotonic())
        return {"error": {"code": "unknown_command", "message": "expected the command status"}}

    def _watch_new_children(self) -> None:
        for child in self._pool.children:
            if child.pidfd in self._watched:
                continue
            self._watched[child.pidfd] = child
            self._selector.register(
                child.channel, selectors.EVENT_READ, lambda c=child: self._on_message(c)
            )
            self._selector.register(
                child.pidfd, selectors.EVENT_READ, lambda c=child: self._on_exit(c)
            )

    def _on_message(self, child: Child) -> None:
        if child.pidfd not in self._watched:
            return
        self._pool.receive(child, time.monotonic())
        if child.channel.closed:
            # Its end closes a moment before the process is gone; the pidfd tells the rest.
            with contextlib.suppress(KeyError):
                self._selector.unregister(child.channel)

    def _on_exit(self, child: Child) -> None:
        if self._watched.pop(child.pidfd, None) is None:
            return
        self._selector.unregister(child.pidfd)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(child.channel)
        self._pool.bury(child, time.monotonic())

    def _check_embedded(self) -> None:
        if self._embedded is not None and not self._pool.stopping:
            self._embedded.check()

    def _tell_title(self) -> None:
        title = f"pyrula: supervisor [{len(self._pool.ready)}/{len(self._pool.places)} ready]"
        if title != self._title:
            self._title = title
            setproctitle(title)

    _title = ""

    # Ends

    def _verdict(self, now: float) -> ExitCode | None:
        pool = self._pool
        if pool.stopping:
            return ExitCode.OK if not pool.children else None
        if pool.boot_failure is not None and not pool.ever_ready and not pool.children:
            return _tell_boot_failure(pool.boot_failure)
        if not pool.ever_ready and now - self._started > 3 * self._options.boot_budget:
            _say(
                "boot_timeout", "expected a worker to get ready within the boot budget, found none"
            )
            return ExitCode.FAILED
        looping = pool.window.looping_since
        limit = self._crash_loop_exit_s
        if limit is not None and looping is not None and now - looping > limit:
            _say("crash_loop", f"expected workers to stay up, found them dying for {limit:.0f} s")
            return ExitCode.CRASH_LOOP
        return None

    def _end(self) -> None:
        self._pool.kill()
        deadline = time.monotonic() + 2.0
        for child in self._pool.children:
            # SIGKILL needs a moment; a child in an uninterruptible wait is left to the kernel.
            while not child.is_gone() and time.monotonic() < deadline:
                self._selector.select(0.01)
            if child.is_gone():
                self._pool.bury(child, time.monotonic())
        self._control.close()
        if self._embedded is not None:
            self._embedded.stop()
        log.info("supervisor_stopped", exit=int(self._exit or 0))

    def _let_go(self) -> None:
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._control.close_in_child()
        if self._embedded is not None:
            self._embedded.close_in_child()


def _only_wake(_: int, __: object) -> None:
    """The wake-up descriptor has the number already; a handler may do no more."""


def _tell_boot_failure(failure: BootFailed) -> ExitCode:
    _say(failure.code, failure.message)
    for frame in failure.frames:
        sys.stderr.write(f"  {frame.file}:{frame.line} in {frame.function}\n")
    return ExitCode(failure.exit)


def _say(code: str, message: str) -> None:
    sys.stderr.write(f"pyrula-supervisor: {message} [{code}]\n")
