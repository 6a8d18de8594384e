"""The verdict of kills and soak: what the checker found, counted, shown and kept.

Owns the words for the rules and the folder in which the evidence of a failure is left.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from loadtest.checker import LATE, Evidence, Violation

COUNTED = {
    "V1": "doubly_completed",
    "V2": "journals_damaged",
    "V3": "done_steps_rerun",
    "V4": "in_doubt_steps_run_too_often",
    "V7": "lost",
    LATE: "late_starts_after_a_stop",
}
SHOWN = 20


def counts(found: Sequence[Violation]) -> dict[str, int]:
    """How many violations there are of each kind, by its name."""
    by_rule = Counter(violation.rule for violation in found)
    return {name: by_rule[rule] for rule, name in COUNTED.items()}


def holds(counted: dict[str, int]) -> bool:
    """Whether no rule is broken."""
    return not any(counted.values())


def show(found: Sequence[Violation], hold: bool, console: Console) -> None:
    """The first violations, and the verdict in words."""
    for violation in found[:SHOWN]:
        console.print(f"{violation.rule} {violation.run}: {violation.what}", highlight=False)
    console.print("every claim holds" if hold else "A CLAIM FAILS")


def keep(evidence: Evidence, found: Sequence[Violation], files: Sequence[Path], to: Path) -> None:
    """Leave what is needed to understand a failure in the folder `to`."""
    to.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy(file, to)
    lines = [f"{violation.rule} {violation.run}: {violation.what}" for violation in found]
    (to / "violations").write_text("\n".join(lines) + "\n")
    for run in {violation.run for violation in found}:
        journal = evidence.journals.get(run)
        seen = [entry for entry in evidence.ledger if entry.run == run]
        text = [event.decode() for event in journal.events] if journal else ["no journal"]
        text += [f"{one.at:.6f} {one.pid} {one.kind} {one.step} {one.execution}" for one in seen]
        (to / f"run-{run}").write_text("\n".join(text) + "\n")
