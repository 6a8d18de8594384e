"""How the command `pyrula` logs.

Owns its set-up of structlog: to stderr, pretty on a terminal and JSON otherwise, so that stdout
stays the command's own. Refuses nothing; a program that embeds a worker sets up its own, a
supervisor's children have that of `pyrula.supervisor.logs`.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import structlog
from structlog.typing import EventDict

LogFormat = Literal["auto", "pretty", "json"]


def configure_logs(fmt: LogFormat = "auto", *, level: int = logging.INFO, **bound: Any) -> None:
    """Send our log lines of at least `level` to stderr; `bound` (a slot…) is in each of them."""
    pretty = fmt == "pretty" or (fmt == "auto" and sys.stderr.isatty())

    # Not context variables: the renewal thread and the step pool wouldn't have them.
    def add_bound(_: Any, __: str, event: EventDict) -> EventDict:
        return {**bound, **event}

    structlog.configure(
        processors=[
            add_bound,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer() if pretty else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
