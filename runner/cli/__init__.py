"""The command `pyrula`.

Owns the way in and the way out: arguments to an exit code of `pyrula.supervisor.exits`, every
failure as one sentence. Refuses tracebacks of ours. Importing it costs next to nothing; what a
command needs is imported when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run `pyrula` with `argv` (default: this process's) and return its exit code.

    >>> main(["runs", "list", "--store", "valkey://localhost:6379"])  # doctest: +SKIP
    0
    """
    from pyrula.workflows.cli.failing import guarded
    from pyrula.workflows.cli.root import pyrula

    return guarded(pyrula, list(sys.argv[1:] if argv is None else argv))
