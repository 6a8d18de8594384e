"""The script build: all transitions joined into one `#!lua` script, and its loading.

Owns how `lua/*.lua` become one script: `verb_noun-<keys>.lua` becomes a branch of an if chain on
ARGV[1], with the functions that it includes defined inside the branch, so that a call pays for its
own branch only. One script per build: two builds share a server during a rolling deploy.

Refuses, with a sentence, an include that is missing or circular, a script without a header, and a
`Code.NAME` that `codes.py` doesn't know.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pyrula.workflows.stores.valkey.codes import Code
from pyrula.workflows.stores.valkey.url import StoreUrl

HOT_FIRST = ("append_events", "claim_runs", "finish_run", "submit_run", "park_run", "renew_locks")

_FILE_NAME = re.compile(r"([a-z]+(?:_[a-z]+)+)-([0-9])\.lua")
_INCLUDE = re.compile(r"^-- include: (.+)$", re.MULTILINE)
_CODE = re.compile(r"\bCode\.([A-Za-z_]+)\b")
_SHEBANG = "#!lua\n"


class ScriptBuildError(Exception):
    """A `.lua` file breaks a rule of the build; a defect of this package, never of its user."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """One transition: its name, how many keys it takes, and its text with the header."""

    name: str
    keys: int
    text: str


@dataclass(frozen=True, kw_only=True)
class ScriptBuild:
    """All transitions of this build in one script.

    `plain` is the same without the shebang, for servers that don't know it (Redis 6.2).
    """

    source: str
    scripts: Mapping[str, Script]

    @property
    def sha(self) -> str:
        """What EVALSHA calls the script by."""
        return sha1(self.source)

    @property
    def plain(self) -> str:
        """The script without its first line."""
        return self.source.removeprefix(_SHEBANG)


def join_scripts(scripts: Mapping[str, str], includes: Mapping[str, str]) -> ScriptBuild:
    """Join script texts (by file name) and include texts (by function name) into one script.

    Raises `ScriptBuildError`.
    """
    parsed = {script.name: script for script in map(_parse, scripts.items())}
    hot = [name for name in HOT_FIRST if name in parsed]
    order = hot + sorted(parsed.keys() - set(hot))
    branches = [_branch(parsed[name], includes) for name in order]
    chain = "\nelse".join(branches)
    tail = "\nend\nreturn redis.error_reply('ERR unknown operation ' .. op)\n"
    source = _SHEBANG + "local op = ARGV[1]\n" + chain + tail
    return ScriptBuild(source=source, scripts=parsed)


@functools.cache
def script_build() -> ScriptBuild:
    """The build of this package's `lua` folder."""
    folder = resources.files("pyrula.workflows.stores.valkey.lua")
    includes = folder / "includes"
    return join_scripts(
        {file.name: file.read_text() for file in folder.iterdir() if file.name.endswith(".lua")},
        {
            file.name.removesuffix(".lua"): file.read_text()
            for file in includes.iterdir()
            if file.name.endswith(".lua")
        },
    )


def upgrade_scripts(url: str) -> str:
    """Load this build's script into the server at `url` ahead of its workers; returns its SHA-1.

    Safe at any time and repeatable; the store also loads it by itself when it is missing. Raises
    `ConfigurationError` for a malformed URL and redis-py's errors if the server refuses.

    >>> upgrade_scripts("valkey://localhost:6379")  # doctest: +SKIP
    '8f0c…'
    """
    server = blocking_client(StoreUrl.parse(url), timeout=5.0)
    try:
        return str(server.script_load(script_build().source))
    finally:
        server.close()


def blocking_client(url: StoreUrl, *, timeout: float) -> Any:
    """A redis-py client without retries; every wait is bounded by `timeout` seconds.

    Untyped: the client's own annotations mix its blocking and its async results.
    """
    options: dict[str, Any] = {
        "username": url.user,
        "password": url.password.reveal() if url.password else None,
        "db": url.db,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "single_connection_client": True,
    }
    if url.path:
        options["unix_socket_path"] = url.path
    else:
        options |= {"host": url.host, "port": url.port}
    if url.tls:
        options |= {
            "ssl": True,
            "ssl_cert_reqs": "required" if url.verify else "none",
            "ssl_check_hostname": url.verify,
            "ssl_ca_certs": url.ca_certs,
        }
    return redis.Redis(**options)


def _parse(file: tuple[str, str]) -> Script:
    file_name, text = file
    match = _FILE_NAME.fullmatch(file_name)
    if match is None:
        raise ScriptBuildError(f"expected a name like verb_noun-1.lua, found {file_name}")
    if not text.startswith("-- ") or "-- Returns" not in text or "-- KEYS[1]" not in text:
        raise ScriptBuildError(f"expected {file_name} to open with its guarantee, KEYS, Returns")
    return Script(name=match[1], keys=int(match[2]), text=text)


def _branch(script: Script, includes: Mapping[str, str]) -> str:
    functions = _resolve(script.text, includes, path=(script.name,), seen={})
    body = "\n".join([*functions.values(), _strip(script.text)])
    return f"if op == '{script.name}' then\n{_put_codes(body, script.name)}"


def _resolve(
    text: str, includes: Mapping[str, str], *, path: tuple[str, ...], seen: dict[str, str]
) -> dict[str, str]:
    for line in _INCLUDE.findall(text):
        for name in line.split(", "):
            if name in path:
                raise ScriptBuildError("circular include: " + " → ".join((*path, name)))
            if name not in includes:
                raise ScriptBuildError(f"{path[-1]} includes {name}, but there is no {name}.lua")
            if name not in seen:
                _resolve(includes[name], includes, path=(*path, name), seen=seen)
                seen[name] = _strip(includes[name])
    return seen


def _strip(text: str) -> str:
    lines = (line.rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("--"))


def _put_codes(text: str, name: str) -> str:
    def number(match: re.Match[str]) -> str:
        if match[1] not in Code.__members__:
            raise ScriptBuildError(f"{name} uses Code.{match[1]}, which codes.py doesn't know")
        return str(int(Code[match[1]]))

    return _CODE.sub(number, text)


def sha1(source: str) -> str:
    """What EVALSHA calls `source` by."""
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
