"""What a worker in the foreground logs."""

from __future__ import annotations

import json
import subprocess
import sys

FAILING = """
import structlog
from pyrula.workflows.logs import configure_logs
configure_logs("json")
try:
    raise LookupError("nobody home")
except LookupError:
    structlog.get_logger().exception("attempt_failed", run_id="order-7")
"""


def test_a_fault_in_json_logs_has_its_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILING], capture_output=True, text=True, timeout=30, check=True
    )
    line = json.loads(done.stderr)
    assert (line["event"], line["level"], line["run_id"]) == ("attempt_failed", "error", "order-7")
    assert line["exception"].endswith("LookupError: nobody home")
    assert done.stdout == ""
