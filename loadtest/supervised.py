"""A real `pyrula-supervisor` under load: starting it, seeing its workers, ending it in every way.

Owns one supervisor process at a time, in a folder of its own beside its server. Refuses to look
inside: it knows what `status` says and what a signal does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadtest import ledger
from pyrula.supervisor import control
from pyrula.supervisor.exits import SupervisorError
from tests.support.until import until

BOOT_S = 30.0
DRAIN_S = 60.0
ROOT = Path(__file__).resolve().parent.parent


@dataclass(kw_only=True)
class Supervised:
    """`procs` workers that serve the ledgered workflow from `store_url`.

    `options` are options of the worker, by name. Starts again after any end.
    """

    folder: Path
    store_url: str = field(repr=False)
    procs: int
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    _process: subprocess.Popen[bytes] | None = None

    @property
    def ledger(self) -> Path:
        """Where the steps write."""
        return self.folder / "ledger"

    @property
    def log(self) -> Path:
        """What supervisor and workers say, of all starts."""
        return self.folder / "pool.log"

    @property
    def pid(self) -> int:
        """The process id of the running supervisor."""
        assert self._process is not None, "no supervisor is running"
        return self._process.pid

    def start(self) -> None:
        """Start, and return once every worker is ready."""
        assert self._process is None, "already running"
        with self.log.open("ab") as stderr:
            self._process = subprocess.Popen(
                # setpriv: a driver that is killed takes its supervisor along.
                ["setpriv", "--pdeathsig", "KILL", *self._command()],
                env=os.environ
                | {"PYRULA_STORE_URL": self.store_url, ledger.VARIABLE: str(self.ledger)},
                stderr=stderr,
            )
        until(self._all_ready, BOOT_S, f"{self.procs} ready workers; see {self.log}")

    def ready(self) -> list[int]:
        """The pids of the workers that are ready, by slot; none while nobody answers."""
        try:
            status = control.ask(self._socket, {"command": "status"}, timeout=1.0)
        except SupervisorError:
            return []
        return [child["pid"] for child in status["children"] if child["state"] == "ready"]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor itself."""
        os.kill(self.pid, number)

    def alive(self) -> bool:
        """Whether the supervisor hasn't ended."""
        return self._process is not None and self._process.poll() is None

    def drain(self) -> int:
        """TERM; gives the exit status once all have ended."""
        assert self._process is not None, "no supervisor is running"
        self._process.terminate()
        status = self._process.wait(DRAIN_S)
        self._process = None
        return status

    def kill(self) -> None:
        """SIGKILL; its workers end with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def _socket(self) -> Path:
        return self.folder / "supervisor.sock"

    def _command(self) -> list[str]:
        options = [("--" + name.replace("_", "-"), text) for name, text in self.options.items()]
        return [
            str(Path(sys.executable).parent / "pyrula-supervisor"),
            *("--procs", str(self.procs), "--workflow", "loadtest.ledgered"),
            *("--app-dir", str(ROOT), "--control", str(self._socket), "--log-format", "json"),
            *(word for option in options for word in option),
        ]

    def _all_ready(self) -> bool:
        assert self.alive(), f"the supervisor ended; its log:\n{self.log.read_text()[-4_000:]}"
        return len(self.ready()) == self.procs
