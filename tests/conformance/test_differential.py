"""Random programs keep the invariants on the memory store, and a real server answers alike."""

from __future__ import annotations

import secrets

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conformance.program import Program
from tests.conformance.stage import ValkeyBackend

COMMON = settings(
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_random_programs_keep_the_invariants_of_a_run() -> None:
    run_state_machine_as_test(
        Program, settings=settings(COMMON, max_examples=200, stateful_step_count=40)
    )


@pytest.mark.timeout(120)
def test_random_programs_get_the_same_answers_from_a_real_server(valkey_url: str) -> None:
    class SideBySide(Program):
        def __init__(self) -> None:
            super().__init__([ValkeyBackend(valkey_url, f"t{secrets.token_hex(6)}")])

    run_state_machine_as_test(
        SideBySide, settings=settings(COMMON, max_examples=80, stateful_step_count=30)
    )
