"""Names and ids are checked at the edge: nothing that could break a key gets further."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrula.workflows.stores.errors import InvalidInputError
from pyrula.workflows.stores.names import (
    MAX_NAME,
    MAX_OWNER,
    MAX_RUN_ID,
    chain_root,
    check_namespace,
    check_owner,
    check_run_id,
    check_workflow_name,
)

CHECKS: list[tuple[Callable[[str], str], str]] = [
    (check_workflow_name, "invalid_workflow_name"),
    (check_namespace, "invalid_namespace"),
    (check_run_id, "invalid_run_id"),
]
BROKEN = ["", " ", "a b", "a\nb", "a{b}", "{", "a\x00", "-a", ".a", "ünï", "a\t", "a~1", "a*"]


@pytest.mark.parametrize(("check", "code"), CHECKS)
@pytest.mark.parametrize("text", BROKEN)
def test_what_could_break_a_key_is_refused(
    check: Callable[[str], str], code: str, text: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        check(text)
    assert refused.value.code == code
    assert "expected" in refused.value.message
    assert "found" in refused.value.message


@pytest.mark.parametrize("check", [check_workflow_name, check_namespace, check_run_id])
@pytest.mark.parametrize("text", ["a", "A", "_a", "9", "order.created-v2_x"])
def test_plain_names_are_taken_as_they_are(check: Callable[[str], str], text: str) -> None:
    assert check(text) == text


@pytest.mark.parametrize(
    ("check", "most"),
    [(check_workflow_name, MAX_NAME), (check_namespace, MAX_NAME), (check_run_id, MAX_RUN_ID)],
)
def test_length_is_bounded(check: Callable[[str], str], most: int) -> None:
    assert check("a" * most) == "a" * most
    with pytest.raises(InvalidInputError) as refused:
        check("a" * (most + 1))
    assert len(refused.value.message) < 250


def test_run_ids_may_hold_what_users_make_ids_of() -> None:
    for run_id in ("mail:bo@example.com", "2026-01-31T10:00", "a/b,c=d+e", "x.retry.y"):
        assert check_run_id(run_id) == run_id


@pytest.mark.parametrize("run_id", ["a~1", "a.retry", "a~1.retry", "~"])
def test_run_ids_of_hops_and_retries_are_the_engines(run_id: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        check_run_id(run_id)
    assert refused.value.code == "invalid_run_id"


def test_workflow_names_have_no_colon() -> None:
    with pytest.raises(InvalidInputError):
        check_workflow_name("a:b")


@pytest.mark.parametrize("owner", ["", "  ", "a\nb", "\x1b[31m", "x" * (MAX_OWNER + 1)])
def test_owners_are_printable_and_not_blank(owner: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        check_owner(owner)
    assert refused.value.code == "invalid_owner"
    assert "\x1b" not in refused.value.message


@pytest.mark.parametrize("owner", ["acme", "Ünï & Co", "x" * MAX_OWNER])
def test_owners_are_for_people(owner: str) -> None:
    assert check_owner(owner) == owner


@pytest.mark.parametrize(
    ("run_id", "root"),
    [
        ("order-7", "order-7"),
        ("order-7~12", "order-7"),
        ("order-7.retry", "order-7"),
        ("order-7~12.retry~3", "order-7"),
        ("order~x", "order~x"),
        ("a.retry.b", "a.retry.b"),
    ],
)
def test_a_chain_is_known_by_its_first_id(run_id: str, root: str) -> None:
    assert chain_root(run_id) == root


@given(st.text(max_size=300))
def test_whatever_passes_has_no_braces_blanks_or_controls(text: str) -> None:
    for check, _ in CHECKS:
        try:
            passed = check(text)
        except InvalidInputError:
            continue
        assert passed == text
        assert passed.isascii()
        assert passed.isprintable()
        assert not set(passed) & set("{} ~*")


@given(st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True), st.integers(0, 10**6))
def test_the_root_of_an_id_that_a_user_may_choose_is_that_id(run_id: str, hop: int) -> None:
    assert chain_root(check_run_id(run_id)) == run_id
    assert chain_root(f"{run_id}~{hop}.retry") == run_id
