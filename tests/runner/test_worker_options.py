"""The options table: defaults, rules, sentences, and its twin in the supervisor."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from pyrula.supervisor.options import WORKER_OPTIONS
from pyrula.workflows.stores.errors import ConfigurationError
from pyrula.workflows.worker.options import WorkerOptions

SPEC = {
    "max_concurrent_runs": 50,
    "claim_poll_interval": 0.1,
    "timer_poll_interval_s": 5.0,
    "timer_max_batch": 100,
    "orphan_scan_interval": 60.0,
    "shutdown_grace": 30.0,
    "cancel_timeout": 5.0,
    "shard_lease_interval": 10.0,
    "event_buffer_size": 64,
    "step_boundary_durability": True,
    "reconcile_interval": 60.0,
    "projection_interval": 60.0,
    "journal_cache_events": 50000,
}


def test_the_supervisor_knows_the_same_options() -> None:
    assert tuple(field.name for field in fields(WorkerOptions)) == tuple(WORKER_OPTIONS)


def test_the_defaults_are_those_of_the_specification() -> None:
    options = WorkerOptions()
    assert {name: getattr(options, name) for name in SPEC} == SPEC


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"max_concurrent_runs": 0}, "expected max_concurrent_runs to be between 1 and 10000"),
        ({"max_concurrent_runs": 1.5}, "expected max_concurrent_runs to be a whole number"),
        ({"max_concurrent_runs": True}, "expected max_concurrent_runs to be a whole number"),
        ({"lock_ttl": math.nan}, "expected lock_ttl to be between"),
        ({"lock_ttl": "30"}, "expected lock_ttl to be a number, found '30'"),
        ({"shutdown_grace": -1}, "expected shutdown_grace to be between 0 and"),
        ({"stranded_policy": "drop"}, "to be 'keep' or 'fail', found 'drop'"),
        ({"step_boundary_durability": 1}, "to be true or false, found 1"),
        ({"health_port": 65_536}, "expected health_port to be between 0 and 65535"),
    ],
)
def test_a_bad_value_is_refused_with_a_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        WorkerOptions(**given)
    assert refused.value.code == "invalid_option"
    assert sentence in refused.value.message


def test_options_are_read_from_text() -> None:
    read = WorkerOptions.from_strings(
        {
            "max_concurrent_runs": "7",
            "lock_ttl": "1.5",
            "step_boundary_durability": "false",
            "health_port": "0",
            "stranded_policy": "fail",
        }
    )
    assert read == WorkerOptions(
        max_concurrent_runs=7,
        lock_ttl=1.5,
        step_boundary_durability=False,
        health_port=0,
        stranded_policy="fail",
    )


@pytest.mark.parametrize(
    ("key", "text", "sentence"),
    [
        ("lock_tl", "1", "found 'lock_tl'; did you mean 'lock_ttl'?"),
        ("lock_ttl", "long", "expected lock_ttl to be a number, found 'long'"),
        ("step_boundary_durability", "maybe", "to be true or false, found 'maybe'"),
        ("timer_max_batch", "1e3", "to be a whole number, found '1e3'"),
    ],
)
def test_bad_text_is_refused_with_a_sentence(key: str, text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        WorkerOptions.from_strings({key: text})
    assert sentence in refused.value.message
