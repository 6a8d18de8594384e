"""Death certificates: what is known of a child that is gone.

Owns the record, its JSON form and its place on disk until it was acted on. A certificate is written
before it is sent, so a supervisor that dies in between leaves it to its successor. Refuses to decide
who is charged beyond what it says.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Cause = Literal[
    "exit",
    "signal",
    "oom",
    "killed",
    "loop_block",
    "gil_stall",
    "gil_held_sleeping",
    "boot",
    "commanded",
    "recycled",
]
UNCOUNTED: frozenset[Cause] = frozenset({"commanded", "recycled"})
CHARGES_ONLY_AFTER_S = 600.0
MAX_STACK = 16 * 1024


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The run to blame, fixed at one instant."""

    slot: int
    seq: int
    epoch: int
    run_id: str
    workflow: str


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """One death. `executing` are (workflow, run id) of the slots open at the end.

    `died_at` is wall time in seconds, only to tell how old the certificate is.
    """

    incarnation: str
    slot: int
    pid: int
    cause: Cause
    died_at: float
    exit_code: int | None = None
    signal: int | None = None
    executing: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    verdict: Verdict | None = None
    blocked_for_s: float | None = None
    liveness_bound_s: float | None = None
    stack: str | None = None

    @property
    def id(self) -> str:
        """Stable: one incarnation dies once."""
        return self.incarnation

    def lost(self, workflow: str) -> list[str] | None:
        """The run ids whose loss counts: none, those executing, or None for all that were held."""
        if self.cause in UNCOUNTED:
            return []
        if not self.executing and self.cause != "killed":
            return None
        return [run_id for name, run_id in self.executing if name == workflow]

    def as_json(self) -> dict[str, Any]:
        """The form in which it crosses the channel and lies on disk."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Certificate:
        """The inverse of `as_json`."""
        verdict = found.get("verdict")
        executing = [(str(name), str(run_id)) for name, run_id in found["executing"]]
        return cls(
            **{
                **found,
                "executing": executing,
                "verdict": Verdict(**verdict) if verdict else None,
            }
        )


class Registry:
    """Certificates on disk that nobody has acted on yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, certificate: Certificate) -> None:
        """Keep it until `discard`; whole or not at all."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(certificate.id)
        scratch = path.with_suffix(".new")
        scratch.write_text(json.dumps(certificate.as_json()))
        os.replace(scratch, path)

    def discard(self, certificate_id: str) -> None:
        """It was acted on."""
        self._path(certificate_id).unlink(missing_ok=True)

    def left_over(self, now: float) -> list[Certificate]:
        """Those of an earlier supervisor that are young enough to act on; older ones are dropped."""
        found: list[Certificate] = []
        for path in sorted(self._folder.glob("*.json")) if self._folder.is_dir() else []:
            try:
                certificate = Certificate.from_json(json.loads(path.read_text()))
            except (OSError, ValueError, TypeError, KeyError):
                path.unlink(missing_ok=True)
                continue
            if now - certificate.died_at < CHARGES_ONLY_AFTER_S:
                found.append(certificate)
            else:
                path.unlink(missing_ok=True)
        return found

    def _path(self, certificate_id: str) -> Path:
        return self._folder / f"{certificate_id}.json"
