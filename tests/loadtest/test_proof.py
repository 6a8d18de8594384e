"""The proof of the example must be able to fail: each way in which a claim breaks is told."""

from __future__ import annotations

import pytest

from examples.proof import Begin, Journal, Kill, prove
from pyrula.workflows.stores.events import (
    Raw,
    RunComplete,
    RunInit,
    RunRequeued,
    StepDone,
    StepPending,
)

KILL = Kill(at=10.0, store_ms=1_000, pid=1)
INIT = RunInit(name="index_module", params=Raw(b"{}"))
READ = (StepPending(p="0", n="read", h="0"), StepDone(p="0"))
PARSE = (StepPending(p="1", n="parse", h="0"), StepDone(p="1"))
COMPLETE = RunComplete()
LOST = RunRequeued(t=1_050, reason="worker_lost")


def begin(step: str, pid: int, at: float) -> Begin:
    return Begin(at=at, pid=pid, run_id="r", step=step)


def violations(journal: Journal, *begins: Begin) -> list[str]:
    return prove({"r": journal}, list(begins), KILL).violations


def test_a_step_in_doubt_may_begin_once_more() -> None:
    journal: Journal = [INIT, *READ, PARSE[0], LOST, *PARSE, COMPLETE]
    begins = [begin("read", 1, 9.0), begin("parse", 1, 9.9), begin("parse", 2, 10.2)]
    proof = prove({"r": journal}, begins, KILL)
    assert proof.violations == []
    assert (proof.steps, proof.begins, proof.in_doubt) == (2, 3, 1)
    assert proof.queued_s == pytest.approx([0.05])
    assert proof.waits_s == pytest.approx([0.2])


def test_a_step_that_was_done_may_not_begin_again() -> None:
    journal: Journal = [INIT, *READ, *READ, COMPLETE]
    said = violations(journal, begin("read", 1, 9.0), begin("read", 2, 10.1))
    assert said == ["r began step 'read' again after it was done", "r finished the step at 0 twice"]


def test_nothing_begins_twice_without_a_kill() -> None:
    journal: Journal = [INIT, READ[0], *READ, COMPLETE]
    assert len(violations(journal, begin("read", 2, 9.0), begin("read", 3, 9.1))) == 1


def test_nothing_begins_three_times() -> None:
    journal: Journal = [INIT, READ[0], *READ, COMPLETE]
    begins = [begin("read", pid, 9.0 + pid) for pid in (1, 2, 3)]
    assert len(violations(journal, *begins)) == 1


def test_ledger_and_journal_know_the_same_steps() -> None:
    assert len(violations([INIT, *READ, COMPLETE])) == 1
    assert len(violations([INIT, COMPLETE], begin("read", 1, 9.0))) == 1


def test_every_run_completes() -> None:
    assert violations([INIT, *READ], begin("read", 1, 9.0)) == ["r has not completed"]
    assert violations([]) == ["r has not completed"]
