"""The command `pyrula`, called in this process or started as one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from pyrula.workflows.cli import main
from tests.support.until import until

PYRULA = Path(sys.executable).parent / "pyrula"


@dataclass(frozen=True)
class Said:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The error object on stderr."""
        return json.loads(self.err)["error"]


class Cli:
    """Calls `pyrula` in this process, on one store."""

    def __init__(
        self, capsys: pytest.CaptureFixture[str], url: str, namespace: str, patch: Any
    ) -> None:
        self._capsys = capsys
        patch.setenv("PYRULA_STORE_URL", url)
        patch.setenv("PYRULA_VALKEY_NAMESPACE", namespace)
        patch.setenv("PYRULA_SHARD_COUNT", "4")

    def __call__(self, *argv: str) -> Said:
        """Run it; nothing of it stays behind."""
        self._capsys.readouterr()
        try:
            code = main(argv)
        finally:
            structlog.reset_defaults()  # it logs to the stderr of this test
        out, err = self._capsys.readouterr()
        return Said(int(code), out, err)


def run_pyrula(*argv: str, env: dict[str, str], cwd: Path, timeout: float = 30.0) -> Said:
    """Run it as a process to its end."""
    done = subprocess.run(
        [PYRULA, *argv],
        env=os.environ | env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


@contextmanager
def worker_starting(
    *argv: str, env: dict[str, str], cwd: Path
) -> Generator[tuple[subprocess.Popen[bytes], Path]]:
    """A `pyrula worker` that was just started, and its log; killed at the end if still there."""
    log = cwd / "worker.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [PYRULA, "worker", "--log-format", "json", *argv],
            env=os.environ | env,
            cwd=cwd,
            stdout=said,
            stderr=said,
        )
    try:
        yield process, log
    finally:
        process.kill()
        process.wait()


@contextmanager
def worker_process(
    *argv: str, env: dict[str, str], cwd: Path
) -> Generator[tuple[subprocess.Popen[bytes], Path]]:
    """`worker_starting`, once it is ready."""
    with worker_starting(*argv, env=env, cwd=cwd) as (process, log):
        until(lambda: "worker_ready" in log.read_text() or process.poll() is not None, 20)
        assert process.poll() is None, log.read_text()
        yield process, log
