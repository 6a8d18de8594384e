"""The control socket: one question, one JSON answer.

Owns a unix socket (0600 in a 0700 folder) with a lock beside it that tells whether its owner lives.
A second supervisor in the folder takes `supervisor-<pid>.sock`. Never blocks the parent: each
client is served as far as it sends and reads, and dropped after 5 s. Refuses to be anywhere but on
this machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pyrula.supervisor.exits import ExitCode, SupervisorError

MAX_PATH = 107
MAX_REQUEST = 4_096
MAX_CLIENTS = 32
PATIENCE_S = 5.0
Answer = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(kw_only=True)
class Client:
    """One connection: a line of JSON comes in, one document goes out."""

    socket: socket.socket
    until: float
    asked: bytearray = field(default_factory=bytearray)
    answer: memoryview | None = None

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self.socket.fileno()

    def read(self, answer: Answer) -> bool:
        """Take what has come; whether the connection goes on."""
        try:
            data = self.socket.recv(MAX_REQUEST)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.asked += data
        if data and b"\n" not in self.asked:
            return len(self.asked) < MAX_REQUEST
        self.answer = memoryview(_answered(bytes(self.asked), answer))
        return self.write()

    def write(self) -> bool:
        """Send on; whether there is more to send."""
        if self.answer is None:
            return True
        try:
            self.answer = self.answer[self.socket.send(self.answer, socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return bool(self.answer)


def _answered(request: bytes, answer: Answer) -> bytes:
    try:
        question: Any = json.loads(request)
        reply = answer(cast("dict[str, Any]", question) if isinstance(question, dict) else {})
    except (ValueError, RecursionError):
        reply = error_document("invalid_request", "expected one line of JSON")
    return json.dumps(reply).encode()


def error_document(code: str, message: str) -> dict[str, Any]:
    """The shape in which every command and route shows an error."""
    return {"error": {"code": code, "message": message, "detail": {}}}


class ControlSocket:
    """Listens at `path`, or beside it if another supervisor holds that.

    Raises `SupervisorError` `control_not_writable` or `control_path_too_long`.
    """

    def __init__(self, path: Path) -> None:
        _make_folder(path.parent)
        lock = _lock(path)
        self.is_second = lock is None
        if lock is None:
            path = path.with_name(f"{path.stem}-{os.getpid()}{path.suffix}")
            lock = _lock(path)
        self.path = path
        self._lock = lock
        self._listener = _listen(path)
        self.clients: list[Client] = []

    def fileno(self) -> int:
        """The descriptor to poll for new clients."""
        return self._listener.fileno()

    def accept(self, now: float) -> Client | None:
        """The next client, or None; `now` in monotonic seconds."""
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return None
        if len(self.clients) >= MAX_CLIENTS:
            connection.close()
            return None
        connection.settimeout(0)
        client = Client(socket=connection, until=now + PATIENCE_S)
        self.clients.append(client)
        return client

    def drop(self, client: Client) -> None:
        """Hang up."""
        self.clients.remove(client)
        client.socket.close()

    def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._lock is None:
            return
        # The lock file stays: unlinking it would let two processes lock two files of one name.
        self.path.unlink(missing_ok=True)
        if self.is_second:
            self.path.with_suffix(".lock").unlink(missing_ok=True)
        self.close_in_child()

    def close_in_child(self) -> None:
        """Close the descriptors only."""
        for client in list(self.clients):
            self.drop(client)
        self._listener.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def ask(path: Path, request: dict[str, Any], timeout: float = 5.0) -> dict[str, Any]:
    """Put one question to the supervisor at `path`; seconds to wait for an answer.

    Raises `SupervisorError` `no_supervisor`.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(_short(path))
            connection.sendall(json.dumps(request).encode() + b"\n")
            chunks = iter(lambda: connection.recv(65_536), b"")
            return dict(json.loads(b"".join(chunks)))
    except (OSError, ValueError) as error:
        raise SupervisorError(
            f"expected a supervisor at {path}, found none that answers; start pyrula-supervisor "
            "there, or name its socket with --control",
            code="no_supervisor",
            exit=ExitCode.REFUSED,
        ) from error


def live(path: Path) -> list[Path]:
    """The sockets of all supervisors that live in the folder of `path`, that one first."""
    candidates = [path, *sorted(path.parent.glob(f"{path.stem}-*{path.suffix}"))]
    return [one for one in candidates if one.exists() and _is_held(one)]


def _is_held(path: Path) -> bool:
    try:
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
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
    address = _short(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.settimeout(0)
    before = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)  # left by a dead owner: we hold the lock
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _not_writable(path, error) from error
    finally:
        os.umask(before)
    listener.listen(4 * MAX_CLIENTS)
    return listener


def _short(path: Path) -> str:
    """A form of the path that fits into a socket address."""
    for text in (str(path), os.path.relpath(path)):
        if len(text.encode()) <= MAX_PATH:
            return text
    raise SupervisorError(
        f"expected a socket path of at most {MAX_PATH} bytes, found {len(str(path).encode())} "
        f"({path}); choose a shorter one with --control",
        code="control_path_too_long",
    )


def _not_writable(path: Path, error: OSError) -> SupervisorError:
    return SupervisorError(
        f"expected to be able to write the control socket at {path}, found that it can't be "
        f"({error.strerror}); choose a writable place with --control",
        code="control_not_writable",
    )
