"""Store URLs: what is understood, what is refused, and that a password never shows."""

from __future__ import annotations

import traceback

import pytest

from pyrula.workflows.stores.errors import ConfigurationError
from pyrula.workflows.stores.valkey.url import Secret, StoreUrl

CANARY = "canary-7f3a"


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("redis://localhost", "redis://localhost:6379/0"),
        ("valkey://db.internal:7000/4", "valkey://db.internal:7000/4"),
        ("rediss://db?db=2", "rediss://db:6379/2"),
        ("valkeys://app:pw@db", "valkeys://app:***@db:6379/0"),
        ("redis://:pw@[::1]:7000", "redis://:***@[::1]:7000/0"),
        ("unix:///run/valkey.sock", "unix:///run/valkey.sock"),
        ("unix://:pw@/run/valkey.sock?db=3", "unix://:***@/run/valkey.sock?db=3"),
        ("unix://.pyrula/valkey.sock", "unix://.pyrula/valkey.sock"),
    ],
)
def test_every_scheme_is_read_and_shown_without_its_password(text: str, safe: str) -> None:
    url = StoreUrl.parse(text)
    assert str(url) == url.safe() == safe
    assert StoreUrl.parse(text) == url


def test_percent_encoding_in_user_and_password_is_undone() -> None:
    url = StoreUrl.parse("redis://a%40b:p%2Fq%3A%23@db")
    assert url.user == "a@b"
    assert url.password == Secret("p/q:#")


@pytest.mark.parametrize(
    "text",
    [
        f"http://app:{CANARY}@db",
        f"app:{CANARY}@db",
        f"redis://app:{CANARY}/x@db:6379",
        f"redis://app:{CANARY}#x@db",
        f"redis://app:{CANARY}?x@db",
        f"redis://app:x[{CANARY}@db",
        f"redis://app:{CANARY}@",
        f"redis://app:{CANARY}@db:99999",
        f"redis://app:{CANARY}@db/one",
        f"redis://app:{CANARY}@db/1?db=2",
        f"redis://app:{CANARY}@db?ssl_cert_reqs=maybe",
        f"redis://{CANARY}@db",
        f"unix://app:{CANARY}@",
        "",
        "redis://",
    ],
)
def test_a_url_that_cant_be_used_is_refused_in_a_sentence_without_the_secret(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        StoreUrl.parse(text)
    assert refused.value.code == "invalid_store_url"
    assert CANARY not in "".join(traceback.format_exception(refused.value))
    assert CANARY not in repr(refused.value.as_dict())


def test_no_way_of_printing_a_url_shows_the_password() -> None:
    url = StoreUrl.parse(f"redis://app:{CANARY}@db")
    shown = f"{url} {url!r} {url!s} {url.password} {url.password!r} {vars(url)}"
    assert CANARY not in shown
    assert url.password is not None
    assert url.password.reveal() == CANARY


def test_only_the_schemes_with_an_s_are_encrypted() -> None:
    assert StoreUrl.parse("redis://db").ssl_context() is None
    context = StoreUrl.parse("rediss://db").ssl_context()
    assert context is not None
    assert context.check_hostname
    unchecked = StoreUrl.parse("rediss://db?ssl_cert_reqs=none").ssl_context()
    assert unchecked is not None
    assert not unchecked.check_hostname
