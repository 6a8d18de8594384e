"""The status document: one shape for `status --json`, the control socket and the probes.

Owns the form; every key is there, null where nothing is known. Reads the pool and the pages.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from typing import Any

from pyrula.supervisor import procfs
from pyrula.supervisor.child import Child
from pyrula.supervisor.pool import Place, Pool


def document(pool: Pool, started_at: float, now: float) -> dict[str, Any]:
    """The whole pool at one instant; `started_at` is wall time, `now` monotonic seconds."""
    return {
        "supervisor": {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "version": _version(),
            "state": _state(pool, now),
            "procs": len(pool.places),
            "ready": len(pool.ready),
            "started_at": started_at,
        },
        "children": [_child(place, now) for place in pool.places],
    }


@cache
def _version() -> str:
    return version("pyrula")


def _state(pool: Pool, now: float) -> str:
    if pool.stopping:
        return "draining"
    if pool.window.looping(now):
        return "crash_loop"
    return "ready" if pool.ready else "booting"


def _child(place: Place, now: float) -> dict[str, Any]:
    child = place.child
    stats = child.stats if child is not None else None
    lag = {"p50": stats.loop_lag_p50_ms, "p99": stats.loop_lag_p99_ms} if stats else None
    return {
        "slot": place.number,
        "pid": child.pid if child else None,
        "state": place.state.value,
        "since": time.time() - (now - child.since) if child else None,
        "restarts": place.restarts,
        "last_exit": asdict(place.last_exit) if place.last_exit else None,
        "shards": stats.shards if stats else None,
        "runs": stats.runs if stats else None,
        "executing": _executing(child) if child else [],
        "verdict": None,
        "loop_lag_ms": lag,
        "rss_bytes": procfs.rss_bytes(child.pid) if child else None,
        "cpu_percent": None,
    }


def _executing(child: Child) -> list[dict[str, Any]]:
    """Every run inside a step, and whatever else is on the loop at this instant."""
    now = time.monotonic_ns()
    reader = child.page.reader()
    slots = {slot.index: slot for slot in reader.open_slots() if slot.in_step}
    slots |= {slot.index: slot for slot in reader.executing()}  # these know since when
    return [
        {
            "run_id": slot.occupant.run_id,
            "workflow": slot.occupant.workflow,
            "step": slot.step_name or None,
            "kind": "step" if slot.in_step else slot.kind.name.lower(),
            "for_s": round((now - slot.entered_at) / 1e9, 3) if slot.entered_at else None,
        }
        for slot in slots.values()
        if slot.occupant is not None
    ]


def rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """The children as rows of a table: slot, pid, state, restarts, runs, executing, memory."""
    table: list[tuple[str, ...]] = []
    for child in found["children"]:
        steps = Counter(one["workflow"] for one in child["executing"])
        table.append(
            (
                str(child["slot"]),
                str(child["pid"] or "–"),
                str(child["state"]),
                str(child["restarts"]),
                str(child["runs"] if child["runs"] is not None else "–"),
                ", ".join(f"{name} ×{n}" for name, n in steps.most_common(3)) or "–",
                f"{(child['rss_bytes'] or 0) >> 20} MiB",
            )
        )
    return table
