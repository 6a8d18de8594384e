"""How a command ends: the one table of exit codes, and the error that carries one.

Owns the codes of `pyrula` and `pyrula-supervisor`. Refuses a second meaning for a number.
"""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """What a command's exit status says; `CHILD_BOOT_FAILED` is only said by child to parent."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CHILD_BOOT_FAILED = 3
    STORE_UNREACHABLE = 4
    RUN_FAILED = 5
    REFUSED = 6
    WAIT_TIMED_OUT = 7
    CRASH_LOOP = 70
    INTERRUPTED = 130
    TERMINATED = 143


class SupervisorError(Exception):
    """The supervisor can't do what was asked; nothing is left half done.

    `code` is stable; the message says what was expected, what was found and what to do; `exit` is
    the status of the command.

    >>> SupervisorError("expected …", code="control_not_writable").exit.name
    'USAGE'
    """

    def __init__(self, message: str, *, code: str, exit: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.exit = exit
