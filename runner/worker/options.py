"""What can be set on a worker.

Owns the one table of options with defaults, rules and sentences; flags and environment variables
derive from it. Refuses unknown keys and values outside their rule with a `ConfigurationError`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_type_hints

from pyrula.workflows.stores.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Options of a `WorkflowWorker`; intervals, timeouts and TTLs in seconds.

    Validated here and used by a later release: `shard_lease_interval`, `reconcile_interval`,
    `projection_interval`, `journal_cache_events`, `poison_*`, `stranded_*`, `max_loop_lag_s`,
    `max_cpu`, `health_*`. Raises `ConfigurationError` `invalid_option`.

    >>> WorkerOptions(max_concurrent_runs=100).claim_poll_interval
    0.1
    """

    max_concurrent_runs: int = 50
    claim_poll_interval: float = 0.1
    timer_poll_interval_s: float = 5.0
    timer_max_batch: int = 100
    orphan_scan_interval: float = 60.0
    shutdown_grace: float = 30.0
    cancel_timeout: float = 5.0
    shard_lease_interval: float = 10.0
    event_buffer_size: int = 64
    step_boundary_durability: bool = True
    reconcile_interval: float = 60.0
    projection_interval: float = 60.0
    journal_cache_events: int = 50_000
    lock_ttl: float = 30.0
    poison_max_retries: int = 3
    poison_retry_ttl_s: float = 86_400.0
    poison_counts_loop_blocked: bool = True
    stranded_policy: Literal["keep", "fail"] = "keep"
    stranded_timeout: float = 86_400.0
    max_loop_lag_s: float = 0.25
    max_cpu: float = 0.95
    max_event_count_per_run: int = 50_000
    payload_limit_bytes: int = 1 << 20
    health_port: int | None = None
    health_host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        for name, kind in _kinds().items():
            value = _checked_kind(name, kind, getattr(self, name))
            least, most = _RANGES.get(name, (None, None))
            if least is not None and value is not None and not least <= value <= most:
                raise _refused(name, f"between {least} and {most}", value)

    @classmethod
    def from_strings(cls, given: Mapping[str, str]) -> WorkerOptions:
        """Options from text, as flags and environment variables give them.

        Raises `ConfigurationError` `invalid_option`, with a suggestion for a misspelt key.
        """
        kinds = _kinds()
        for name in given:
            if name not in kinds:
                close = difflib.get_close_matches(name, kinds, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise ConfigurationError(
                    f"expected a worker option, found {name!r}{hint}", code="invalid_option"
                )
        return cls(**{name: _parsed(name, kinds[name], text) for name, text in given.items()})


_DAY = 86_400.0
_RANGES: dict[str, tuple[float, float]] = {
    "max_concurrent_runs": (1, 10_000),
    "claim_poll_interval": (0.001, 60),
    "timer_poll_interval_s": (0.001, 3_600),
    "timer_max_batch": (1, 100_000),
    "orphan_scan_interval": (0.01, _DAY),
    "shutdown_grace": (0, _DAY),
    "cancel_timeout": (0, 3_600),
    "shard_lease_interval": (0.01, 3_600),
    "event_buffer_size": (1, 1_000),
    "reconcile_interval": (0.01, _DAY),
    "projection_interval": (0.01, _DAY),
    "journal_cache_events": (0, 1_000_000_000),
    "lock_ttl": (0.1, _DAY),
    "poison_max_retries": (0, 1_000),
    "poison_retry_ttl_s": (1, 366 * _DAY),
    "stranded_timeout": (1, 3_660 * _DAY),
    "max_loop_lag_s": (0.01, 60),
    "max_cpu": (0.05, 1),
    "max_event_count_per_run": (3, 10_000_000),
    "payload_limit_bytes": (1_024, 512 << 20),
    "health_port": (0, 65_535),
}


def _kinds() -> dict[str, Any]:
    hints = get_type_hints(WorkerOptions)
    return {field.name: hints[field.name] for field in fields(WorkerOptions)}


def _checked_kind(name: str, kind: Any, value: Any) -> Any:
    choices = get_args(kind)
    if choices and all(isinstance(choice, str) for choice in choices):
        if value not in choices:
            raise _refused(name, " or ".join(repr(c) for c in choices), value)
        return None
    allowed = choices or (kind,)
    is_bool = isinstance(value, bool)
    if (bool in allowed) is not is_bool or not isinstance(value, (*allowed, *_also(allowed))):
        raise _refused(name, _described(allowed), value)
    return None if isinstance(value, (str, bool)) else value


def _also(allowed: tuple[Any, ...]) -> tuple[type, ...]:
    return (int,) if float in allowed else ()


def _parsed(name: str, kind: Any, text: str) -> Any:
    choices = get_args(kind)
    allowed = choices or (kind,)
    try:
        if bool in allowed:
            return {"1": True, "true": True, "0": False, "false": False}[text.lower()]
        if int in allowed:
            return int(text)
        if float in allowed:
            return float(text)
    except (ValueError, KeyError) as error:
        raise _refused(name, _described(allowed), text) from error
    return text


def _described(allowed: tuple[Any, ...]) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return " or ".join(names.get(kind, "unset") for kind in allowed)


def _refused(name: str, rule: str, found: Any) -> ConfigurationError:
    return ConfigurationError(
        f"expected {name} to be {rule}, found {found!r}", code="invalid_option"
    )
