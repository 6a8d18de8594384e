"""Exit codes: one enum for `pyrula` and `pyrula-supervisor`, and for what a child tells its parent.

Owns the numbers that scripts and service managers rely on; they never change their meaning.
"""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """Why a process of ours ended."""

    OK = 0  # done, or drained in peace
    FAILED = 1  # could not boot, or a worker was stopped by an error
    USAGE = 2  # wrong arguments or configuration
    BOOT_FAILED = 3  # child to parent: the reason went ahead over the channel
    STORE_UNREACHABLE = 4  # the store did not answer within the boot budget
    RUN_FAILED = 5  # the awaited run ended in error
    REFUSED = 6  # the store said no: not found, finished, conflict
    WAIT_TIMEOUT = 7  # the run goes on, the wait is over
    CRASH_LOOP = 70  # children kept dying
    INTERRUPTED = 130  # second SIGINT
    TERMINATED = 143  # second SIGTERM
