from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from loadtest.checker import LATE, Evidence, Journal, check
from loadtest.ledger import Entry
from pyrula.workflows.stores.events import (
    Event,
    Raw,
    RunComplete,
    RunInit,
    RunRequeued,
    StepDone,
    StepPending,
    TimerFired,
    TimerSet,
    pack,
)

INIT = RunInit(name="ledgered", params=Raw(b"{}"))
LOST = RunRequeued(reason="worker_lost")
END = RunComplete()


def pending(step: str) -> StepPending:
    return StepPending(p=step, n=step, h="0")


def done(step: str, execution: str) -> StepDone:
    return StepDone(p=step, r=Raw(f'"{execution}"'.encode()))


def start(step: str, pid: int, at: float) -> Entry:
    return Entry(run="r", step=step, kind="start", pid=pid, at=at, execution=f"{pid}:{at}")


def evidence(events: Sequence[Event], *ledger: Entry) -> Evidence:
    packed = [pack(event) for event in events]
    journal = Journal(length=len(packed), trimmed=0, events=packed)
    return Evidence(accepted=["r"], journals={"r": journal}, ledger=ledger)


GOOD = [INIT, pending("a"), done("a", "1:1.0"), pending("b"), done("b", "1:2.0"), END]
RAN = (start("a", 1, 1.0), start("b", 1, 2.0))


def rules(given: Evidence) -> list[str]:
    return [violation.rule for violation in check(given)]


def test_a_plain_run_is_clean() -> None:
    assert rules(evidence(GOOD, *RAN)) == []


def test_a_step_in_doubt_may_run_once_more_for_each_attempt_lost() -> None:
    journal = [INIT, pending("a"), LOST, LOST, done("a", "3:3.0"), END]
    ran = [start("a", pid, float(pid)) for pid in (1, 2, 3)]
    assert rules(evidence(journal, *ran)) == []


def test_an_attempt_may_be_lost_with_its_pending() -> None:
    journal = [INIT, LOST, pending("a"), done("a", "2:2.0"), END]
    assert rules(evidence(journal, start("a", 1, 1.0), start("a", 2, 2.0))) == []


def test_an_attempt_lost_before_the_last_progress_opens_no_window() -> None:
    journal = [INIT, pending("a"), LOST, done("a", "1:1.0"), pending("b"), done("b", "2:3.0"), END]
    ran = (start("a", 1, 1.0), start("b", 1, 2.0), start("b", 2, 3.0))
    assert rules(evidence(journal, *ran)) == ["V4"]


def test_a_fired_timer_is_progress() -> None:
    timer = [TimerSet(p="t", n="t", due=1), LOST, TimerFired(p="t")]
    journal = [INIT, *timer, pending("a"), done("a", "2:2.0"), END]
    assert rules(evidence(journal, start("a", 1, 1.0), start("a", 2, 2.0))) == ["V4"]


@pytest.mark.parametrize(
    ("journal", "rule"),
    [
        pytest.param([*GOOD, END], "V1", id="two ends"),
        pytest.param([*GOOD, LOST], "V1", id="an event after the end"),
        pytest.param(GOOD[:-1], "V7", id="no end"),
        pytest.param(GOOD[1:], "V2", id="no beginning"),
        pytest.param([INIT, *GOOD], "V2", id="two beginnings"),
        pytest.param([*GOOD[:3], *GOOD[2:]], "V3", id="done twice"),
        pytest.param([*GOOD[:2], *GOOD[3:]], None, id="never done but nothing says so"),
        pytest.param([INIT, *GOOD[2:]], "V3", id="done without pending"),
        pytest.param([INIT, *GOOD[3:]], "V3", id="ran and isn't in the journal"),
        pytest.param([*GOOD[:2], done("a", "9:9.0"), *GOOD[3:]], "V3", id="done by nobody"),
    ],
)
def test_a_bad_journal_is_caught(journal: list[Event], rule: str | None) -> None:
    found = rules(evidence(journal, *RAN))
    assert (rule in found) if rule else found == []


def test_a_step_that_runs_again_after_it_was_done_is_caught() -> None:
    journal = [*GOOD[:3], LOST, *GOOD[3:]]
    again = evidence(journal, *RAN, start("a", 2, 1.5))
    assert "V3" in rules(again)


def test_two_runs_of_a_step_in_one_attempt_are_caught() -> None:
    journal = [*GOOD[:2], done("a", "2:1.5"), *GOOD[3:]]
    assert rules(evidence(journal, *RAN, start("a", 2, 1.5))) == ["V4"]


def test_a_process_that_has_just_woken_up_is_excused_for_a_moment() -> None:
    journal = [INIT, pending("a"), LOST, *GOOD[2:]]
    late = evidence(journal, *RAN, start("a", 2, 4.0))
    assert rules(replace(late, resumed=[(2, 3.9)])) == [LATE]
    assert rules(replace(late, resumed=[(2, 3.0)])) == ["V3"]
    assert rules(replace(late, resumed=[(2, 4.1)])) == ["V3"]
    assert rules(replace(late, resumed=[(1, 3.9)])) == ["V3"]


def test_a_process_that_woke_up_may_not_go_on_after_a_step_that_ended_since() -> None:
    journal = [INIT, pending("a"), LOST, *GOOD[2:]]
    ended = Entry(run="r", step="before", kind="end", pid=2, at=3.95, execution="2:0.5")
    for at, expected in ((3.95, "V3"), (3.8, LATE)):
        ledger = (*RAN, replace(ended, at=at), start("a", 2, 4.0))
        assert rules(replace(evidence(journal, *ledger), resumed=[(2, 3.9)])) == [expected]


def test_a_gap_in_a_journal_is_caught() -> None:
    packed = [pack(event) for event in GOOD]
    for journal in (
        Journal(length=7, trimmed=0, events=packed),
        Journal(length=6, trimmed=1, events=packed),
    ):
        assert rules(replace(evidence(GOOD, *RAN), journals={"r": journal})) == ["V2"]


def test_a_journal_that_changed_since_it_was_read_is_caught() -> None:
    packed = [pack(event) for event in GOOD]
    rewritten = [packed[0], pack(pending("other"))]
    for earlier, expected in ((packed[:3], []), (rewritten, ["V2"]), ([*packed, b"{}"], ["V2"])):
        journal = Journal(length=6, trimmed=0, events=packed, earlier=[earlier])
        assert rules(replace(evidence(GOOD, *RAN), journals={"r": journal})) == expected


def test_an_unknown_event_is_caught() -> None:
    packed = [pack(event) for event in GOOD]
    packed.insert(2, b'{"e":"no:such","t":1}')
    journal = Journal(length=7, trimmed=0, events=packed)
    assert rules(replace(evidence(GOOD, *RAN), journals={"r": journal})) == ["V2"]


def test_an_accepted_run_that_is_gone_is_caught() -> None:
    assert rules(Evidence(accepted=["r"], journals={}, ledger=[])) == ["V7"]


def test_a_run_in_the_ledger_alone_is_caught() -> None:
    assert rules(Evidence(accepted=[], journals={}, ledger=RAN)) == ["V7"]
