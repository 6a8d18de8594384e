"""A real `pyrula-supervisor` in a folder of its own, for as long as the demonstration takes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
READY_S = 60.0
STOP_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A running supervisor with its embedded server."""

    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """Where the embedded server listens."""
        return f"unix://{self.folder}/.pyrula/valkey.sock"

    def status(self) -> Any:
        """What `pyrula-supervisor status --json` says, or None while it can't be asked."""
        done = subprocess.run(
            [BIN / "pyrula-supervisor", "status", "--json"],
            cwd=self.folder,
            capture_output=True,
            timeout=30,
            check=False,
        )
        return json.loads(done.stdout) if done.returncode == 0 else None

    def log(self) -> str:
        """What the supervisor and its workers have logged."""
        return Path(self.folder, "log").read_text()

    def wait_until_ready(self, procs: int) -> None:
        """Return once that many workers are ready. Raises `RuntimeError` with the log."""
        end = time.monotonic() + READY_S
        while time.monotonic() < end and self.process.poll() is None:
            status = self.status()
            if status and status["supervisor"]["ready"] >= procs:
                return
        raise RuntimeError(f"the workers did not get ready:\n{self.log()}")


@contextmanager
def running_pool(folder: Path, *, procs: int, in_flight: int) -> Generator[Pool]:
    """Start it, and leave no process behind."""
    command = [str(BIN / "pyrula-supervisor"), "--procs", str(procs)]
    options = [
        "--app-dir",
        str(ROOT),
        "--log-format",
        "json",
        "--max-concurrent-runs",
        str(in_flight),
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYRULA_")}
    with Path(folder, "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--workflow", "examples.stdlib_index", *options],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        yield Pool(folder=folder, process=process)
    finally:
        _stop(process, folder)


def _stop(process: subprocess.Popen[bytes], folder: Path) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # After a kill the server is the one process that may outlive its supervisor.
    with contextlib.suppress(OSError, ValueError, KeyError):
        record = json.loads(Path(folder, ".pyrula", "server.json").read_text())
        os.kill(int(record["pid"]), signal.SIGKILL)
