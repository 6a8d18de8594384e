"""`pyrula-supervisor` as a process of its own: started, asked, watched, and gone at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from pyrula.supervisor.control import ask
from pyrula.supervisor.exits import SupervisorError
from tests.support.sources import ROOT
from tests.support.until import until

COMMAND = Path(sys.executable).parent / "pyrula-supervisor"
NO_STORE = "valkey://127.0.0.1:1"
BOOT_S = 20.0


class Supervisor:
    """One supervisor in `folder`; with a fake `entry` it has no store either."""

    def __init__(
        self,
        folder: Path,
        *argv: str,
        entry: str | None = None,
        env: dict[str, str] | None = None,
        log: int | None = None,
    ) -> None:
        self.folder = folder
        self._log = folder / f"supervisor-{len(list(folder.glob('*.log')))}.log"
        self._journal = folder / "journal"
        fake = () if entry is None else ("--entry", f"tests.supervisor.children:{entry}")
        served = () if entry is None else ("--store", NO_STORE, "--workflow", "fake")
        paths = {"PYTHONPATH": str(ROOT), "FAKE_JOURNAL": str(self._journal)}
        with self._log.open("wb") as file:
            self.process = subprocess.Popen(
                [COMMAND, "--log-format", "json", *fake, *served, *argv],
                cwd=folder,
                env=os.environ | paths | (env or {}),
                stdin=subprocess.DEVNULL,
                stdout=file if log is None else log,
                stderr=file if log is None else log,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError, ValueError):
            record = json.loads((self.folder / ".pyrula/server.json").read_text())
            os.kill(record["pid"], signal.SIGKILL)

    # What it says

    @property
    def log(self) -> str:
        """All that it and its children have written."""
        return self._log.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Its log lines of this event."""
        lines = [line for line in self.log.splitlines() if line.startswith("{")]
        return [event for event in map(json.loads, lines) if event.get("event") == name]

    def journal(self, event: str | None = None) -> list[dict[str, Any]]:
        """What the fake children have written, oldest first."""
        text = self._journal.read_text() if self._journal.exists() else ""
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in lines if event in (None, line["event"])]

    def status(self) -> dict[str, Any]:
        """The document of `status --json`, over the control socket."""
        return ask(self.folder / ".pyrula/supervisor.sock", {"command": "status"})

    def children(self) -> list[dict[str, Any]]:
        """Its children, none if it doesn't answer yet."""
        with contextlib.suppress(SupervisorError):
            return list(self.status()["children"])
        return []

    def pids(self) -> list[int]:
        """The pids of those that live."""
        return [child["pid"] for child in self.children() if child["pid"]]

    def ready(self) -> list[dict[str, Any]]:
        """The children that serve."""
        return [child for child in self.children() if child["state"] == "ready"]

    # What is done to it

    def wait_ready(self, count: int, within: float = BOOT_S) -> Self:
        """Return once so many children serve."""

        def is_ready() -> bool:
            assert self.process.poll() is None, self.log
            return len(self.ready()) == count

        until(is_ready, within, f"{count} children ready")
        return self

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def exit_code(self, within: float = 10.0) -> int:
        """Wait for its end."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {within} s:\n{self.log}") from None

    def drained(self, within: float = 10.0) -> int:
        """TERM it and wait for its end."""
        self.signal(signal.SIGTERM)
        return self.exit_code(within)


def is_alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def all_gone(pids: list[int]) -> bool:
    """Whether none of them lives."""
    return not any(map(is_alive, pids))


def run(folder: Path, *argv: str, env: dict[str, str] | None = None, within: float = 20.0) -> Any:
    """Run the command to its end; `returncode`, `stdout`, `stderr` as text."""
    return subprocess.run(
        [COMMAND, "--log-format", "json", *argv],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | (env or {}),
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )
