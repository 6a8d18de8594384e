"""Which worker options exist, for flags and environment.

Owns names and what help says of them; rules and defaults are the worker's, which validates what
is handed on (a test holds the two tables together). Three values are also read by the parent: how
large a page must be, and how long a drain may take.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyrula.supervisor.exits import SupervisorError

LATER = "no effect yet"
WORKER_OPTIONS: dict[str, str] = {
    "max_concurrent_runs": "runs in flight at once in a worker; default 50",
    "claim_poll_interval": "seconds between polls for runs, the floor below hints; default 0.1",
    "timer_poll_interval_s": "seconds between full looks for due sleepers; default 5",
    "timer_max_batch": "most sleepers woken in one look; default 100",
    "orphan_scan_interval": "seconds between looks for runs of lost workers; default 60",
    "shutdown_grace": "seconds that a drain waits for runs in flight; default 30",
    "cancel_timeout": "seconds that what is cancelled at a drain may take to end; default 5",
    "shard_lease_interval": f"seconds between renewals of shard leases; default 10; {LATER}",
    "event_buffer_size": "events written behind without step_boundary_durability; default 64",
    "step_boundary_durability": "true: a step is durable before the next; default true",
    "reconcile_interval": f"seconds between archive reconciliations; default 60; {LATER}",
    "projection_interval": f"seconds between projections; default 60; {LATER}",
    "journal_cache_events": f"events of parked runs kept in memory; default 50000; {LATER}",
    "lock_ttl": "seconds that a run's lock lives without renewal; default 30",
    "poison_max_retries": f"charges that a run survives; default 3; {LATER}",
    "poison_retry_ttl_s": f"seconds until a charge is forgotten; default 86400; {LATER}",
    "poison_counts_loop_blocked": f"whether a blocked loop is a charge; default true; {LATER}",
    "stranded_policy": f"keep or fail runs that nobody serves; default keep; {LATER}",
    "stranded_timeout": f"seconds until a run counts as stranded; default 86400; {LATER}",
    "max_loop_lag_s": f"loop lag in seconds above which nothing is claimed; 0.25; {LATER}",
    "max_cpu": f"share of a core above which nothing is claimed; default 0.95; {LATER}",
    "max_event_count_per_run": "events after which a run ends too large; default 50000",
    "payload_limit_bytes": "most bytes of one step's arguments or result; default 1048576",
    "health_port": f"port of the health probes; {LATER}",
    "health_host": f"address of the health probes; default 127.0.0.1; {LATER}",
}
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
