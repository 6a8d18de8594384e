"""Whose loss a certificate counts, its form, and how those left over are found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyrula.supervisor.certificate import Cause, Certificate, Executing, Verdict
from pyrula.supervisor.graveyard import Graveyard, realm_of

A_RUN = Executing(
    slot=0, seq=7, kind="body", workflow="w", run_id="r1", token="3.x", epoch=3, step="s", for_s=1.5
)
A_VERDICT = Verdict(slot=0, seq=7, epoch=3, workflow="w", run_id="r1")


def certificate(**given: Any) -> Certificate:
    base: dict[str, Any] = {"incarnation": "h-1", "slot": 0, "pid": 5, "cause": Cause.SIGNAL}
    whole: dict[str, Any] = base | {"issued_at": 1_000.0} | given
    return Certificate(**whole)


def test_the_json_form_says_everything_again() -> None:
    whole = certificate(executing=(A_RUN,), verdict=A_VERDICT, signal=11, blocked_for_s=2.0)
    assert Certificate.from_json(whole.to_json()) == whole


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        ({"cause": Cause.SIGNAL, "executing": (A_RUN,)}, "executing"),
        ({"cause": Cause.SIGNAL}, "all"),
        ({"cause": Cause.EXIT}, "all"),
        ({"cause": Cause.OOM}, "all"),
        ({"cause": Cause.KILLED, "executing": (A_RUN,)}, "executing"),
        ({"cause": Cause.KILLED}, "none"),
        ({"cause": Cause.COMMANDED, "executing": (A_RUN,)}, "none"),
        ({"cause": Cause.RECYCLED}, "none"),
        ({"cause": Cause.EVACUATED}, "none"),
        ({"cause": Cause.BOOT}, "none"),
        ({"cause": Cause.GIL_STALL, "verdict": A_VERDICT, "executing": (A_RUN,)}, "none"),
    ],
)
def test_whose_loss_counts_follows_from_the_cause(given: dict[str, Any], lost: str) -> None:
    assert certificate(**given).lost == lost


def test_only_the_runs_of_a_workflow_are_named_for_it() -> None:
    found = certificate(executing=(A_RUN,))
    assert found.lost_run_ids("w") == ("r1",)
    assert found.lost_run_ids("other") == ()
    assert certificate().lost_run_ids("w") is None


def test_after_ten_minutes_it_only_charges() -> None:
    assert not certificate().charges_only(1_600.0)
    assert certificate().charges_only(1_601.0)


def test_the_next_supervisor_finds_what_was_left(tmp_path: Path) -> None:
    first = Graveyard(tmp_path / "certificates", "realm")
    kept = certificate(realm="realm")
    first.keep(kept)
    first.keep(certificate(realm="realm", incarnation="h-2"))
    first.forget("h-2")
    assert Graveyard(tmp_path / "certificates", "realm").left_over(now=1_100.0) == [kept]


def test_a_certificate_of_another_store_is_left_alone(tmp_path: Path) -> None:
    Graveyard(tmp_path, "theirs").keep(certificate(realm="theirs"))
    assert Graveyard(tmp_path, "ours").left_over(now=1_100.0) == []
    assert len(Graveyard(tmp_path, "theirs").left_over(now=1_100.0)) == 1


def test_what_is_broken_or_too_old_is_dropped(tmp_path: Path) -> None:
    graveyard = Graveyard(tmp_path, "realm")
    graveyard.keep(certificate(realm="realm"))
    (tmp_path / "half.json").write_text('{"incarnation": "h')
    assert graveyard.left_over(now=9_999.0) == []
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_costs_only_the_file(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    graveyard = Graveyard(blocked / "certificates", "realm")
    graveyard.keep(certificate())
    graveyard.forget("h-1")
    assert graveyard.left_over(now=1_000.0) == []


def test_the_realm_names_no_secret_and_ignores_the_password() -> None:
    realm = realm_of("redis://user:canary@host:1/0", "ns")
    assert "canary" not in realm
    assert realm == realm_of("redis://host:1/0", "ns") != realm_of("redis://host:1/0", "other")
