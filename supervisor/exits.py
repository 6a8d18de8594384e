"""Exit statuses, the same enum for every command.

Owns the numbers; each has one meaning for scripts and service managers.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What a command's exit status says."""

    OK = 0  # done, or a clean drain
    ERROR = 1  # boot failed, or the worker was stopped by an error
    USAGE = 2  # wrong usage or configuration; nothing was started
    BOOT_FAILED = 3  # child to parent only: this child could not boot
    STORE_UNREACHABLE = 4  # the store did not answer within the budget
    RUN_FAILED = 5  # the awaited run ended in error
    REFUSED = 6  # the product refused the request (conflict, finished, not found)
    WAIT_TIMEOUT = 7  # the awaited run goes on
    CRASH_LOOP = 70  # children kept dying for longer than --crash-loop-exit
    INTERRUPTED = 130  # a second SIGINT while draining
    TERMINATED = 143  # a second SIGTERM while draining
