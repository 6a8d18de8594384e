"""What the kernel tells of processes and of this machine's share.

Owns reads of /proc and of the cgroup, and the reaping of children that only /proc knows of. Answers
None where the kernel doesn't say; refuses to guess.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Collection
from functools import cache
from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; with the pid an identity.

    None if there is none, or only a zombie of it.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def rss_bytes(pid: int) -> int | None:
    """Resident memory of the process."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def threads() -> int:
    """How many threads this process has."""
    return len(os.listdir("/proc/self/task"))


def reap_strangers(known: Collection[int]) -> int:
    """Reap ended children of this process that are none of `known`; how many.

    As PID 1 or sub-reaper we inherit the orphans of our children, and nobody else can reap them.
    """
    pid = os.getpid()
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    strangers = [int(child) for child in children if int(child) not in known]
    return sum(_reaped(stranger) for stranger in strangers)


def _reaped(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is not None
    return False


def usable_cpus() -> int:
    """min(CPU affinity, cgroup quota rounded up)."""
    cpus = len(os.sched_getaffinity(0))
    quota = _cgroup_quota()
    return max(1, cpus if quota is None else min(cpus, math.ceil(quota)))


def oom_kills() -> int | None:
    """How many processes of our memory cgroup the kernel has killed for want of memory."""
    for path in _oom_counters():
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


@cache
def _oom_counters() -> tuple[Path, ...]:
    """The files of cgroup v2 and v1 that may hold the counter, ours first."""
    found: list[Path] = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ()
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            found.append(Path(f"/sys/fs/cgroup{group}/memory.events"))
        elif "memory" in controllers.split(","):
            # In a container the group may be named as the host sees it, and mounted at the root.
            root = Path("/sys/fs/cgroup/memory")
            found += [root / group.lstrip("/") / "memory.oom_control", root / "memory.oom_control"]
    return tuple(found)


def _cgroup_quota() -> float | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota_us = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text())
        period_us = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota_us / period_us if quota_us > 0 else None
