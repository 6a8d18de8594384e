"""The control socket: one question, one JSON answer.

Owns a unix socket (0600 in a 0700 folder) with a lock beside it that tells whether its owner lives.
A second supervisor in the folder takes `supervisor-<pid>.sock`. Never blocks the parent: a client
that doesn't send or read is dropped. Refuses to be anywhere but on this machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyrula.supervisor.exits import ExitCode, SupervisorError

MAX_PATH = 107
MAX_REQUEST = 4_096
Answer = Callable[[dict[str, Any]], dict[str, Any]]


class ControlSocket:
    """Listens at `path`, or beside it if another supervisor holds that.

    Raises `SupervisorError` `control_not_writable` or `control_path_too_long`.
    """

    def __init__(self, path: Path) -> None:
        _make_folder(path.parent)
        self._lock = _lock(path)
        if self._lock is None:
            path = path.with_name(f"{path.stem}-{os.getpid()}{path.suffix}")
            self._lock = _lock(path)
        self.path = path
        self._listener = _listen(path)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._listener.fileno()

    def serve(self, answer: Answer) -> None:
        """Answer everybody who has connected."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self._answer_one(connection, answer)

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self.close_in_child()
        self.path.unlink(missing_ok=True)
        self.path.with_suffix(".lock").unlink(missing_ok=True)

    def close_in_child(self) -> None:
        """Close the descriptors only."""
        self._listener.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _answer_one(self, connection: socket.socket, answer: Answer) -> None:
        # A client sends its request with the connect; 50 ms is generous on one machine.
        connection.settimeout(0.05)
        try:
            request = json.loads(connection.recv(MAX_REQUEST) or b"{}")
            reply = answer(request if isinstance(request, dict) else {})
            connection.sendall(json.dumps(reply).encode())
        except (OSError, ValueError):
            return


def ask(path: Path, request: dict[str, Any], timeout: float = 5.0) -> dict[str, Any]:
    """Put one question to the supervisor at `path`. Raises `SupervisorError` `no_supervisor`."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(_short(path))
            connection.sendall(json.dumps(request).encode())
            connection.shutdown(socket.SHUT_WR)
            chunks = iter(lambda: connection.recv(65_536), b"")
            return dict(json.loads(b"".join(chunks)))
    except (OSError, ValueError) as error:
        raise SupervisorError(
            f"expected a supervisor at {path}, found none that answers ({error}); start "
            "pyrula-supervisor there, or name its socket with --control",
            code="no_supervisor",
            exit=ExitCode.REFUSED,
        ) from error


def live(path: Path) -> list[Path]:
    """The sockets of all supervisors that live in the folder of `path`."""
    candidates = [path, *sorted(path.parent.glob(f"{path.stem}-*{path.suffix}"))]
    return [one for one in candidates if one.exists() and _is_held(one)]


def _is_held(path: Path) -> bool:
    try:
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(folder, error) from error


def _lock(path: Path) -> int | None:
    try:
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _not_writable(path, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.setblocking(False)
    path.unlink(missing_ok=True)
    before = os.umask(0o177)
    try:
        listener.bind(_short(path))
    except OSError as error:
        listener.close()
        raise _not_writable(path, error) from error
    finally:
        os.umask(before)
    listener.listen(16)
    return listener


def _short(path: Path) -> str:
    """A form of the path that fits into a socket address."""
    text = str(path)
    if len(text.encode()) > MAX_PATH:
        with contextlib.suppress(ValueError):
            text = os.path.relpath(path)
    if len(text.encode()) > MAX_PATH:
        raise SupervisorError(
            f"expected a socket path of at most {MAX_PATH} bytes, found {len(text.encode())} "
            f"({path}); choose a shorter one with --control",
            code="control_path_too_long",
        )
    return text


def _not_writable(path: Path, error: OSError) -> SupervisorError:
    return SupervisorError(
        f"expected to be able to write the control socket at {path}, found that it can't be "
        f"({error.strerror}); choose a writable place with --control",
        code="control_not_writable",
    )
