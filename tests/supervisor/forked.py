"""Scenes with a forked writer, each run as `python -m tests.supervisor.forked NAME`.

In a process of their own: pytest under xdist has threads, and a fork beside threads can hang.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from pyrula.supervisor.page import Occupant, Page, code_of

LOOK_S = 5.0
ENOUGH = 2_000


def occupant(number: int) -> Occupant:
    """One whose parts all say the same number, so that a torn read shows."""
    text = f"{number:06d}" * 8
    return Occupant(run_id=text, workflow=text, token=text, epoch=number)


def torn() -> None:
    """Print how many different occupants were read whole, and how many not."""
    page = Page(runs=1, threads=0)
    pid = os.fork()
    if pid == 0:
        _write_for_ever(page)
    reader, whole, bad = page.reader(), set[int](), 0
    end = time.monotonic() + LOOK_S
    while len(whole) < ENOUGH and time.monotonic() < end:
        slot = reader.slot(0)
        if slot.occupant is None:
            continue
        if slot.occupant == occupant(slot.occupant.epoch) and slot.step_path == slot.step_name:
            whole.add(slot.occupant.epoch)
        else:
            bad += 1
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    print(len(whole), bad)


def _write_for_ever(page: Page) -> None:
    writer, number = page.writer(), 0
    while True:
        number += 1
        writer.open(0, occupant(number))
        writer.step(0, f"{number:06d}" * 10, f"{number:06d}" * 10)


def killed() -> None:
    """Print what the page says after SIGKILL."""
    page = Page(runs=1, threads=0)
    pid = os.fork()
    if pid == 0:
        writer = page.writer()
        writer.open(0, Occupant(run_id="r", workflow="w", token="t", epoch=1))
        writer.enter(code_of(0))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    slot = page.reader().on_loop()
    print(slot and slot.occupant and slot.occupant.run_id, slot and slot.kind.name)


if __name__ == "__main__":
    {"torn": torn, "killed": killed}[sys.argv[1]]()
