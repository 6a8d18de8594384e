"""Help comes at once: it loads nothing that only a running command needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

SLOW = ("asyncio", "hiredis", "redis", "rich", "structlog", "uvloop", "setproctitle", "psutil")


@pytest.mark.parametrize("argv", [["--help"], ["runs", "--help"], ["runs", "submit", "--help"]])
def test_help_loads_nothing_slow(argv: list[str]) -> None:
    script = (
        "import sys; from pyrula.workflows.cli import main; code = main(sys.argv[1:]); "
        f"print(code, [name for name in {SLOW} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *argv],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.stdout.splitlines()[-1], done.stderr) == ("0 []", "")
    assert done.stdout.startswith("Usage: pyrula ")
