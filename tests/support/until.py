"""Waiting for a fact, bounded: the only polling that tests do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
_STEP_S = 0.005


def until(predicate: Callable[[], T], within: float = 5.0, what: str = "") -> T:
    """Poll until `predicate()` is true and return its value; fail after `within` seconds."""
    end = time.monotonic() + within
    while not (value := predicate()):
        assert time.monotonic() < end, _sentence(predicate, within, what)
        time.sleep(_STEP_S)
    return value


async def eventually(predicate: Callable[[], T], within: float = 5.0, what: str = "") -> T:
    """`until` for a running loop, which turns meanwhile."""
    end = time.monotonic() + within
    while not (value := predicate()):
        assert time.monotonic() < end, _sentence(predicate, within, what)
        await asyncio.sleep(_STEP_S)
    return value


async def eventually_async(
    predicate: Callable[[], Awaitable[T]], within: float = 5.0, what: str = ""
) -> T:
    """`eventually` for a predicate that has to ask somebody."""
    end = time.monotonic() + within
    while not (value := await predicate()):
        assert time.monotonic() < end, _sentence(predicate, within, what)
        await asyncio.sleep(_STEP_S)
    return value


def _sentence(predicate: object, within: float, what: str) -> str:
    return f"not within {within} s: {what or predicate}"
