"""Death certificates that nobody has acted on yet, in the run directory.

Owns the files, so that a supervisor that dies leaves its unfinished settlements to the next one. A
disk that fails is logged and costs only that: settling from memory goes on.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from pyrula.supervisor.certificate import Certificate

log = structlog.get_logger()


def realm_of(store_url: str, namespace: str) -> str:
    """Stands for store and namespace without naming them (a URL may hold a password)."""
    place = store_url.partition("://")[2].rpartition("@")[2]
    return hashlib.sha256(f"{place}\0{namespace}".encode()).hexdigest()[:16]


class Graveyard:
    """Certificates in `folder`, of one realm."""

    def __init__(self, folder: Path, realm: str) -> None:
        self._folder = folder
        self.realm = realm

    def keep(self, certificate: Certificate) -> None:
        """Keep it until `forget`; whole or not at all."""
        path = self._path(certificate.id)
        scratch = path.with_suffix(".new")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            scratch.write_bytes(certificate.to_json())
            scratch.replace(path)
        except OSError as error:
            log.error("certificate_not_kept", reason=error.strerror)

    def forget(self, certificate_id: str) -> None:
        """It was acted on."""
        with suppress(OSError):
            self._path(certificate_id).unlink(missing_ok=True)

    def left_over(self, now: float) -> list[Certificate]:
        """Those of an earlier supervisor of this realm; `now` in seconds since the epoch.

        One that is too old to requeue anything is dropped: the orphan scan has been there.
        """
        found: list[Certificate] = []
        for path in sorted(self._folder.glob("*.json")) if self._folder.is_dir() else []:
            try:
                certificate = Certificate.from_json(path.read_bytes())
            except (OSError, msgspec.DecodeError):
                certificate = None
            if certificate is not None and certificate.realm != self.realm:
                continue
            if certificate is None or certificate.charges_only(now):
                with suppress(OSError):
                    path.unlink()
                continue
            found.append(certificate)
        return found

    def _path(self, certificate_id: str) -> Path:
        return self._folder / f"{certificate_id}.json"
