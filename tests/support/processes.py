"""Worker processes for tests: `pyrula worker` on the example workflows, to be killed and paused."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.cli import PYRULA
from tests.support.until import until

ROOT = Path(__file__).parents[2]
# Small, so that recovery is quick; the lock is renewed every 0.3 s.
QUICK = {"lock_ttl": "0.9", "orphan_scan_interval": "0.2", "timer_poll_interval_s": "0.2"}


class WorkerProcess:
    """One worker, started and ready; `options` are those of `WorkerOptions`."""

    def __init__(
        self,
        folder: Path,
        url: str,
        namespace: str,
        *,
        crash: str = "",
        shards: int = 4,
        **options: str,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self._log = folder / "worker.log"
        variables = {f"PYRULA_WORKER_{k.upper()}": v for k, v in (QUICK | options).items()}
        variables |= {
            "PYRULA_STORE_URL": url,
            "PYRULA_VALKEY_NAMESPACE": namespace,
            "PYRULA_SHARD_COUNT": str(shards),
        }
        if crash:
            variables["PYRULA_CRASH_POINT"] = crash
        arguments = ("--workflow", "tests.support.workflows", "--app-dir", str(ROOT))
        with self._log.open("wb") as said:
            self._process = subprocess.Popen(
                [PYRULA, "worker", "--log-format", "json", *arguments],
                env=os.environ | variables,
                cwd=folder,
                stdout=said,
                stderr=said,
            )
        until(lambda: self.said("worker_ready") or not self.alive, 20, "the worker is ready")
        assert self.alive or crash, self.log

    @property
    def log(self) -> str:
        """All it has said."""
        return self._log.read_text()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def said(self, event: str) -> bool:
        """Whether it has logged that event."""
        return event in self.log

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def ended(self, within: float = 20.0) -> int:
        """Wait for its end; gives its exit status, negative for a signal."""
        return self._process.wait(within)

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self._process.kill()
        self._process.wait()

    def cpu_s(self) -> float:
        """Processor time used so far, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


StartWorker = Callable[..., WorkerProcess]
