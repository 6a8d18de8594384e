"""Crash points: armed by the environment, they act at the n-th passing; unarmed they do nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from pyrula.workflows.engine.crashpoints import POINTS
from tests.support.sources import ROOT

ENGINE = ROOT / "runner"
PASSES = """
from pyrula.workflows.engine.crashpoints import crash_point
for n in range(1, 4):
    print(n, flush=True)
    crash_point("after_pending")
    crash_point("after_done")
"""


def passing(armed: str | None) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key != "PYRULA_CRASH_POINT"}
    if armed is not None:
        env["PYRULA_CRASH_POINT"] = armed
    command = [sys.executable, "-c", PASSES]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=20)


@pytest.mark.parametrize(
    ("armed", "passed", "code"),
    [
        (None, 3, 0),
        ("", 3, 0),
        ("before_park:kill", 3, 0),
        ("after_pending:kill", 1, -signal.SIGKILL),
        ("after_pending:kill:3", 3, -signal.SIGKILL),
        ("after_done:raise:2", 2, 1),
    ],
)
def test_a_process_ends_where_a_test_armed_it(armed: str | None, passed: int, code: int) -> None:
    done = passing(armed)
    assert (len(done.stdout.split()), done.returncode) == (passed, code)


@pytest.mark.parametrize(
    "armed", ["nowhere:kill", "after_done", "after_done:dance", "after_done:kill:x"]
)
def test_an_arming_that_means_nothing_is_refused(armed: str) -> None:
    done = passing(armed)
    assert done.returncode == 1
    assert "expected PYRULA_CRASH_POINT=" in done.stderr


def test_every_point_is_somewhere_in_the_code() -> None:
    code = "".join(path.read_text() for path in ENGINE.rglob("*.py"))
    assert [point for point in POINTS if f'crash_point("{point}")' not in code] == []
