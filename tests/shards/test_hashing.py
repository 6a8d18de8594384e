"""Where a run lives never changes: not with the build, the process or the length of its chain."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pyrula.workflows.shards.hashing import shard_of

# CRC-32 of the root id modulo the count (0xCBF43926 is its published check value of 123456789).
FIXED = [
    ("order-7", 64, 26),
    ("order-7", 1, 0),
    ("a", 64, 3),
    ("", 64, 0),
    ("ünïcode", 64, 42),
    ("123456789", 1_000, 262),
]


@pytest.mark.parametrize(("run_id", "shard_count", "shard"), FIXED)
def test_shards_of_fixed_ids_never_change(run_id: str, shard_count: int, shard: int) -> None:
    assert shard_of(run_id, shard_count) == shard


@pytest.mark.parametrize(
    "member", ["order-7~1", "order-7~12", "order-7.retry", "order-7~3.retry", "order-7.retry~2"]
)
def test_hops_and_retries_share_the_shard_of_their_root(member: str) -> None:
    for shard_count in (1, 7, 64, 1_000):
        assert shard_of(member, shard_count) == shard_of("order-7", shard_count)


def test_what_only_looks_like_a_hop_has_a_shard_of_its_own() -> None:
    others = ["order-7~x", "order-7.retry.csv", "order-7.retryable", "order-7-1"]
    assert all(shard_of(other, 1_000_003) != shard_of("order-7", 1_000_003) for other in others)


def test_another_process_with_another_hash_seed_agrees() -> None:
    program = (
        "from pyrula.workflows.shards.hashing import shard_of;"
        "print([shard_of(f'run-{n}', 64) for n in range(20)])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert told == {str([shard_of(f"run-{number}", 64) for number in range(20)])}


def test_runs_spread_over_all_shards() -> None:
    counts = [0] * 64
    for number in range(64_000):
        counts[shard_of(f"run-{number}", 64)] += 1
    assert min(counts) > 800
    assert max(counts) < 1_200
