"""Which worker options exist, for flags and environment.

Owns names and kinds only; rules and defaults are the worker's, which validates what is handed on (a
test holds the two tables together). Four values are also read by the parent: how large a page must
be, and how long a drain may take.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyrula.supervisor.exits import SupervisorError

WORKER_OPTIONS: tuple[str, ...] = (
    "max_concurrent_runs",
    "claim_poll_interval",
    "timer_poll_interval_s",
    "timer_max_batch",
    "orphan_scan_interval",
    "shutdown_grace",
    "cancel_timeout",
    "shard_lease_interval",
    "event_buffer_size",
    "step_boundary_durability",
    "reconcile_interval",
    "projection_interval",
    "journal_cache_events",
    "lock_ttl",
    "poison_max_retries",
    "poison_retry_ttl_s",
    "poison_counts_loop_blocked",
    "stranded_policy",
    "stranded_timeout",
    "max_loop_lag_s",
    "max_cpu",
    "max_event_count_per_run",
    "payload_limit_bytes",
    "health_port",
    "health_host",
)
_PARENT_DEFAULTS = {"max_concurrent_runs": 50.0, "shutdown_grace": 30.0, "cancel_timeout": 5.0}


def given(flags: Mapping[str, str | None]) -> dict[str, str]:
    """What was set among `flags`; None means not."""
    return {name: text for name in WORKER_OPTIONS if (text := flags.get(name)) is not None}


def number(options: Mapping[str, str], name: str) -> float:
    """A value that the parent needs too. Raises `SupervisorError` `invalid_option`."""
    text = options.get(name)
    if text is None:
        return _PARENT_DEFAULTS[name]
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise SupervisorError(
            f"expected {name} to be a number of 0 or more, found {text!r}",
            code="invalid_option",
        )
    return value
