"""Signals as messages: handlers do nothing, the numbers arrive in a pipe.

Owns the wake-up descriptor and which signals the parent manages. From `SignalInbox()` on none is
lost, however early it comes. Refuses to do work inside a handler.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal

MANAGED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCHLD,
    signal.SIGTTIN,
    signal.SIGTTOU,
)
ENDS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})


class SignalInbox:
    """Install handlers for `MANAGED`; read what has come with `take`, poll `fileno`.

    One per process, made in the main thread. Raises `OSError` if there is no descriptor left.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in MANAGED:
            signal.signal(number, _only_wake)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._read

    def take(self) -> list[signal.Signals]:
        """The signals since the last call, in order."""
        with contextlib.suppress(BlockingIOError):
            return [signal.Signals(number) for number in os.read(self._read, 256)]
        return []

    def wait(self, seconds: float) -> signal.Signals | None:
        """Wait up to `seconds`; a signal that means the end cuts it short and is returned."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        poll.poll(seconds * 1000)
        return next((number for number in self.take() if number in ENDS), None)

    def close(self) -> None:
        """Close the descriptors, in a child or at the end; signals go nowhere from here on."""
        signal.set_wakeup_fd(-1)
        os.close(self._read)
        os.close(self._write)


def _only_wake(_: int, __: object) -> None:
    """The wake-up descriptor has the number already; a handler may do no more."""
