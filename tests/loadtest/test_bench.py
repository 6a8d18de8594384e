"""What scripts read from the benchmarks has one shape, also where nothing was measured."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from loadtest.bench import Figure, document, main
from loadtest.stage import stage, submit_many

KEYS = {
    "W1": {"steps_per_s", "runs_per_s"},
    "W2": {"p50_ms", "p99_ms"},
    "W3": {"p50_s", "p99_s"},
    "W4": {"p50_ms", "p99_ms"},
    "W5": {"idle_median_ms", "block_median_ms", "regex_median_ms"},
    "W6": {
        *("idle_pss_mib", "preload_pss_mib"),
        *("worker_bytes_per_parked", "server_bytes_per_parked"),
    },
    "W7": {"backlog", "tenants", "journal", "timers"},
    "W8": {"rebalance_intervals", "reclaim_s", "moves", "minimum"},
}


def test_the_document_has_every_key_and_null_for_what_was_not_measured() -> None:
    steps = Figure(workload="W1", name="steps_per_s/1", unit="steps/s", values=(1.0, 3.0, 2.0))
    found = json.loads(json.dumps(document([steps])))
    assert {name: set(found[name]) for name in KEYS} == KEYS
    assert set(found) == {*KEYS, "machine", "versions"}
    assert found["W1"]["steps_per_s"] == {"1": 2.0, "2": None}
    assert found["W2"] == {"p50_ms": None, "p99_ms": None}
    assert found["versions"]["valkey"]


@pytest.mark.parametrize("argv", [["--only", "W9"], ["--procs", "none"], ["--repeat", "0"]])
def test_what_cannot_be_measured_is_refused(argv: list[str]) -> None:
    assert CliRunner().invoke(main, argv).exit_code == 2


async def test_a_stage_counts_what_its_workers_ran() -> None:
    async with stage(procs=2) as on:
        on.pause()
        await submit_many(on.client, "bench_ten", 40)
        assert on.tally.total() == 0
        on.resume()
        await on.counted(40)
        run = await on.client.submit("bench_one")
        assert await run.result(timeout=10) == 0
