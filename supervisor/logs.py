"""Structured logs of the supervisor and of its children.

Owns their configuration of structlog: events with fields to stderr, pretty on a terminal, JSON
otherwise. Lines of a child carry its slot. Control characters in values are escaped.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO, cast

import structlog


class _Stderr:
    """Standard error whose reader may be gone: that must not end a supervisor."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


Format = Literal["auto", "pretty", "json"]


def configure(form: Format = "auto", *, slot: int | None = None) -> None:
    """Send events of this process to stderr; `slot` marks a child's lines."""

    def mark(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if slot is not None:
            event["slot"] = slot
        return event

    pretty = form == "pretty" or (form == "auto" and sys.stderr.isatty())
    render: Any = structlog.dev.ConsoleRenderer() if pretty else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            mark,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Stderr())),
        cache_logger_on_first_use=False,
    )


def say(sentence: str) -> None:
    """A sentence for people, on standard error."""
    stream = _Stderr()
    stream.write(f"pyrula-supervisor: {sentence}\n")
    stream.flush()
