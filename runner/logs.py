"""How the command `pyrula` logs.

Owns its set-up of structlog: to stderr, pretty on a terminal and JSON otherwise, so that stdout
stays the command's own. Refuses nothing; a program that embeds a worker sets up its own, a
supervisor's children have that of `pyrula.supervisor.logs`.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

LogFormat = Literal["auto", "pretty", "json"]


def configure_logs(fmt: LogFormat = "auto", *, level: int = logging.INFO) -> None:
    """Send our log lines of at least `level` to stderr."""
    pretty = fmt == "pretty" or (fmt == "auto" and sys.stderr.isatty())
    as_json = (structlog.processors.format_exc_info, structlog.processors.JSONRenderer())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *((structlog.dev.ConsoleRenderer(),) if pretty else as_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
