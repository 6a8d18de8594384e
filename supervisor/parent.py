"""The parent: one loop over everything that can happen to the pool.

Owns the selector, what each signal means, and how a supervisor ends. Every wait is a timer; nothing
here blocks or sleeps, and nothing waits for the store. Refuses an event loop and threads, so that a
fork is always safe.
"""

from __future__ import annotations

import contextlib
import math
import selectors
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog
from setproctitle import setproctitle

from pyrula.supervisor import logs, procfs, status
from pyrula.supervisor.child import Child
from pyrula.supervisor.control import Client, ControlSocket, error_document
from pyrula.supervisor.embedded import EmbeddedServer
from pyrula.supervisor.exits import ExitCode
from pyrula.supervisor.link import BootFailed
from pyrula.supervisor.pool import BOOT_MARGIN_S, Pool, PoolOptions
from pyrula.supervisor.signals import SignalInbox

log = structlog.get_logger()
REAP_S = 0.5
_KILL_EXIT = {signal.SIGTERM: ExitCode.TERMINATED, signal.SIGINT: ExitCode.INTERRUPTED}


class Parent:
    """Runs a pool until it is told to stop; `run` returns the exit status.

    `crash_loop_exit_s` None keeps trying for ever.
    """

    def __init__(
        self,
        options: PoolOptions,
        *,
        signals: SignalInbox,
        control: ControlSocket,
        embedded: EmbeddedServer | None,
        crash_loop_exit_s: float | None,
    ) -> None:
        self._options = options
        self._signals = signals
        self._control = control
        self._embedded = embedded
        self._crash_loop_exit_s = math.inf if crash_loop_exit_s is None else crash_loop_exit_s
        self._started_at = time.time()
        self._boot_deadline = time.monotonic() + options.boot_budget + BOOT_MARGIN_S + 1.0
        self._pool = Pool(options, self._let_go)
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, Child] = {}
        self._exit: ExitCode | None = None
        self._title = ""

    def run(self) -> int:
        """The main loop."""
        self._watch_ourselves()
        try:
            while self._exit is None:
                now = time.monotonic()
                self._pool.tick(now)
                self._watch_new_children()
                self._keep_embedded(now)
                self._drop_slow_clients(now)
                self._tell_title()
                for key, _ in self._selector.select(self._pool.next_due(now)):
                    key.data()
                self._judge(time.monotonic())
        finally:
            self._end()
        return int(self._exit)

    # Signals

    def handle_sigterm(self) -> None:
        """Drain; the second time kill."""
        self._stop(signal.SIGTERM)

    def handle_sigint(self) -> None:
        """Drain; the second time kill."""
        self._stop(signal.SIGINT)

    def handle_sigquit(self) -> None:
        """Kill at once."""
        self._kill(signal.SIGQUIT)

    def handle_sigusr1(self) -> None:
        """Put the status into the log."""
        log.info("status", **self._status())

    def handle_sigchld(self) -> None:
        """Reap strangers; our own children are seen by their pidfds."""
        known = {child.pid for child in self._pool.children}
        if self._embedded is not None:
            known.add(self._embedded.pid)
        procfs.reap_strangers(known)

    def _ignore(self) -> None:
        """Of no meaning yet."""

    def _stop(self, number: signal.Signals) -> None:
        if self._pool.stopping:
            self._kill(number)
            return
        log.info("supervisor_draining", signal=number.name)
        self._pool.drain(time.monotonic())

    def _kill(self, number: signal.Signals) -> None:
        log.warning("supervisor_killing", signal=number.name)
        self._pool.kill()
        self._exit = _KILL_EXIT.get(number, ExitCode.TERMINATED)

    # What the selector calls

    def _on_signals(self) -> None:
        for number in self._signals.take():
            getattr(self, f"handle_{number.name.lower()}", self._ignore)()

    def _on_connect(self) -> None:
        while (client := self._control.accept(time.monotonic())) is not None:
            self._watch(client, partial(self._on_client, client))

    def _on_client(self, client: Client) -> None:
        asking = client.answer is None
        goes_on = client.read(self._answer) if asking else client.write()
        if not goes_on:
            self._hang_up(client)
        elif asking and client.answer is not None:
            self._selector.modify(client, selectors.EVENT_WRITE, partial(self._on_client, client))

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        command = question.get("command")
        if command == "status":
            return self._status()
        message = f"expected the command status, found {str(command)[:40]!r}"
        return error_document("unknown_command", message)

    def _on_message(self, child: Child) -> None:
        self._pool.receive(child, time.monotonic())
        if child.channel.closed:
            # Its end closes a moment before the process is gone; the pidfd tells the rest.
            self._unwatch(child.channel)

    def _on_exit(self, child: Child) -> None:
        self._unwatch(child.pidfd)
        self._unwatch(child.channel)
        del self._watched[child.pidfd]
        self._pool.bury(child, time.monotonic())

    def _on_embedded_died(self, embedded: EmbeddedServer) -> None:
        self._unwatch(embedded.pidfd)
        embedded.died(time.monotonic())

    # Steps of the loop

    def _watch_ourselves(self) -> None:
        self._watch(self._signals, self._on_signals)
        self._watch(self._control, self._on_connect)
        self._watch_embedded()

    def _watch_new_children(self) -> None:
        for child in self._pool.children:
            if child.pidfd not in self._watched:
                self._watched[child.pidfd] = child
                self._watch(child.channel, partial(self._on_message, child))
                self._watch(child.pidfd, partial(self._on_exit, child))

    def _watch_embedded(self) -> None:
        embedded = self._embedded
        if embedded is not None and embedded.pidfd is not None:
            self._watch(embedded.pidfd, partial(self._on_embedded_died, embedded))

    def _keep_embedded(self, now: float) -> None:
        if self._embedded is not None and self._embedded.tick(now):
            self._watch_embedded()

    def _drop_slow_clients(self, now: float) -> None:
        for client in [client for client in self._control.clients if now > client.until]:
            self._hang_up(client)

    def _tell_title(self) -> None:
        title = f"pyrula: supervisor [{len(self._pool.ready)}/{len(self._pool.places)} ready]"
        if title != self._title:
            self._title = title
            setproctitle(title)

    def _judge(self, now: float) -> None:
        """Whether this is the end."""
        pool = self._pool
        if self._exit is not None:
            return
        if pool.stopping:
            if not pool.children:
                self._exit = ExitCode.FAILED if pool.overdue else ExitCode.OK
        elif pool.boot_failure is not None and pool.nobody_boots:
            self._exit = _told(pool.boot_failure)
        elif not pool.ever_ready and now > self._boot_deadline:
            self._exit = _told(pool.boot_failure or _late(self._options.boot_budget))
        elif pool.in_crash_loop_for(now) > self._crash_loop_exit_s:
            logs.say("expected workers to stay up, found them dying all the time [crash_loop]")
            self._exit = ExitCode.CRASH_LOOP

    # Ends

    def _end(self) -> None:
        """Nothing that we started is left, but an embedded server that others use."""
        self._pool.kill()
        deadline = time.monotonic() + REAP_S
        while self._pool.children and time.monotonic() < deadline:
            # A child in an uninterruptible wait is left to the kernel.
            self._watch_new_children()
            for key, _ in self._selector.select(0.05):
                if key.fd in self._watched:
                    key.data()
        self._control.close()
        if self._embedded is not None:
            self._embedded.stop(self._wait_at_the_end)
        log.info("supervisor_stopped", exit=int(self._exit or 0))

    def _wait_at_the_end(self, seconds: float) -> signal.Signals | None:
        came = self._signals.wait(seconds)
        if came is not None:
            self._exit = _KILL_EXIT.get(came, ExitCode.TERMINATED)
        # After a second signal there is no patience left for anything.
        killed = self._exit in _KILL_EXIT.values()
        return came or (signal.SIGTERM if killed else None)

    def _status(self) -> dict[str, Any]:
        return status.document(self._pool, self._started_at, time.monotonic())

    def _hang_up(self, client: Client) -> None:
        self._selector.unregister(client)
        self._control.drop(client)

    def _watch(self, source: Any, act: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, act)

    def _unwatch(self, source: Any) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(source)

    def _let_go(self) -> None:
        """In a child: close what is the parent's."""
        self._selector.close()
        self._signals.close()
        self._control.close_in_child()
        if self._embedded is not None:
            self._embedded.close_in_child()


def _late(budget_s: float) -> BootFailed:
    message = f"expected a worker to get ready within {budget_s:g} s, found none; see the log above"
    return BootFailed(code="boot_timeout", message=message, exit=1)


def _told(failure: BootFailed) -> ExitCode:
    frames = [f"\n  {one.file}:{one.line} in {one.function}" for one in failure.frames]
    logs.say(f"{failure.message} [{failure.code}]" + "".join(frames))
    return ExitCode(failure.exit)
