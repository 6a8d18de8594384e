"""Where a store is and how to get in, kept so that the password can't be shown by accident.

Owns the grammar of store URLs. Refuses to put a secret into `repr`, `str`, logs or errors: the
password is reachable only through `Secret.reveal()`, and a URL that can't be parsed is described
without being quoted.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from pyrula.workflows.stores.errors import ConfigurationError

_TLS = {"redis": False, "valkey": False, "rediss": True, "valkeys": True, "unix": False}
_OPTIONS = {"db", "ssl_ca_certs", "ssl_cert_reqs"}


class Secret:
    """A text that only `reveal()` gives away; everything else shows `***`.

    >>> Secret("hunter2")
    ***
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The secret itself, for the one place that sends it to the server."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


@dataclass(frozen=True, kw_only=True)
class StoreUrl:
    """One server: `redis:// rediss:// valkey:// valkeys://` (TLS with the second s) or `unix://`.

    `path` is set for a unix socket, `host` and `port` otherwise. `str()` is safe to log.

    >>> print(StoreUrl.parse("redis://app:hunter2@db.internal/3"))
    redis://app:***@db.internal:6379/3
    """

    scheme: str
    host: str = ""
    port: int = 6379
    path: str = ""
    user: str | None = None
    password: Secret | None = None
    db: int = 0
    ca_certs: str | None = None
    verify: bool = True

    @classmethod
    def parse(cls, text: str) -> StoreUrl:
        """Read a URL; what is not understood is refused rather than ignored.

        Raises `ConfigurationError` `invalid_store_url` with a sentence that quotes no secret.
        """
        scheme = text.partition("://")[0]
        if scheme not in _TLS or "://" not in text:
            schemes = ", ".join(f"{name}://" for name in _TLS)
            raise _invalid(f"expected it to start with one of {schemes}")
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            # The ValueError quotes what it could not read, which may be half of a password.
            raise _invalid(
                "expected host:port with a port of 0-65535; "
                "percent-encode / # ? @ : and [ ] in a user name or password"
            ) from None
        if parts.fragment:
            raise _invalid("found a '#'; percent-encode it as %23 if it belongs to the password")
        options = _options(parts.query)
        unix = scheme == "unix"
        user, password = _credentials(parts.username, parts.password)
        return cls(
            scheme=scheme,
            host="" if unix else _host(parts.hostname),
            port=6379 if unix or port is None else port,
            path=_socket_path(parts.netloc.rpartition("@")[2] + parts.path) if unix else "",
            user=user,
            password=password,
            db=_db(options.get("db", ""), "" if unix else parts.path.strip("/")),
            ca_certs=options.get("ssl_ca_certs"),
            verify=_verify(options.get("ssl_cert_reqs", "required")),
        )

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return _TLS[self.scheme]

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS settings of this URL, or None where the connection is plain."""
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.ca_certs)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def safe(self) -> str:
        """The URL with `***` for the password: for logs, errors and tables."""
        secret = "" if self.password is None else ":***"
        login = f"{self.user or ''}{secret}@" if secret else ""
        if self.path:
            return f"unix://{login}{self.path}" + (f"?db={self.db}" if self.db else "")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{login}{host}:{self.port}/{self.db}"

    def __str__(self) -> str:
        return self.safe()


def _invalid(sentence: str) -> ConfigurationError:
    return ConfigurationError(f"The store URL can't be used: {sentence}.", code="invalid_store_url")


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    if not options.keys() <= _OPTIONS:
        # Unknown names are not quoted: an unencoded '?' in a password lands here.
        raise _invalid(
            f"expected only the options {', '.join(sorted(_OPTIONS))} after '?', "
            "found another; percent-encode a '?' in a password as %3F"
        )
    return options


def _host(host: str | None) -> str:
    if not host:
        raise _invalid("expected a host after '://'")
    return host


def _socket_path(path: str) -> str:
    if not path.strip("/"):
        raise _invalid("expected the path of a unix socket after 'unix://'")
    return unquote(path)


def _db(option: str, path: str) -> int:
    text = option or path or "0"
    if not (text.isascii() and text.isdigit()) or (option and path and option != path):
        raise _invalid("expected one database number >= 0, as /0 or ?db=0")
    return int(text)


def _verify(text: str) -> bool:
    if text not in {"required", "none"}:
        raise _invalid("expected ssl_cert_reqs to be 'required' or 'none'")
    return text == "required"


def _credentials(user: str | None, password: str | None) -> tuple[str | None, Secret | None]:
    if user and not password:
        raise _invalid("found a user name without a password; write user:password@host")
    return unquote(user or "") or None, Secret(unquote(password)) if password else None
