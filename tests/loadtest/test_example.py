"""The example keeps its promises: real workers, a real kill, every done step once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.sources import ROOT


@pytest.mark.timeout(150)
def test_the_example_ends_green() -> None:
    # The bound is generous: other tests use the same cores.
    done = subprocess.run(
        [sys.executable, "-m", "examples.stdlib_index", "--modules", "200", "--recovery-bound=10"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every step that was done ran exactly once." in done.stdout
    assert done.stderr == ""
