"""From what a user typed to runs and params.

Owns finding a run by id alone, reading params given as JSON, and reading a journal page by page.
Refuses an id that several workflows share until one is named.
"""

from __future__ import annotations

import json
import sys
from typing import Any, cast

from pyrula.workflows.stores.base import JournalPage, RunRef, Store
from pyrula.workflows.stores.errors import (
    InvalidInputError,
    RunNotFoundError,
    TruncatedHistoryError,
)
from pyrula.workflows.stores.events import AnyEvent, UnknownEvent, unpack
from pyrula.workflows.stores.names import chain_root, check_run_id

NumberedEvent = tuple[int, AnyEvent | UnknownEvent]


async def find_run(store: Store, run_id: str, workflow: str | None) -> RunRef:
    """Where the run lives.

    Raises `InvalidInputError` `invalid_run_id` or, if several workflows have a run of that id and
    none is named, `ambiguous_run_id`; `RunNotFoundError`.
    """
    check_run_id(chain_root(run_id))
    found = [ref for ref in await store.find(run_id) if workflow in {None, ref.workflow}]
    if not found:
        of = f" of workflow {workflow!r}" if workflow else ""
        raise RunNotFoundError(
            f"expected a run {run_id!r}{of}, found none; it was never submitted, or has expired"
        )
    names = sorted({ref.workflow for ref in found})
    if len(names) > 1:
        raise InvalidInputError(
            f"expected one run {run_id!r}, found one each of {', '.join(names)}; say which with "
            "--workflow",
            code="ambiguous_run_id",
            detail={"workflows": names},
        )
    return found[0]


async def read_events(store: Store, ref: RunRef) -> list[NumberedEvent]:
    """All events of the journal that are still kept, each with its sequence number."""
    events: list[NumberedEvent] = []
    page = await _first_page(store, ref)
    while page.events:
        events += [(page.first_seq + i, unpack(raw)) for i, raw in enumerate(page.events)]
        following = page.first_seq + len(page.events)
        if following > page.length:
            break
        page = await store.read_journal(ref, following)
    return events


async def _first_page(store: Store, ref: RunRef) -> JournalPage:
    try:
        return await store.read_journal(ref, 1)
    except TruncatedHistoryError as error:
        return await store.read_journal(ref, int(error.detail["missing"]) + 1)


def params_of(text: str | None) -> dict[str, Any]:
    """The params in a JSON argument; `-` reads them from stdin, None means none.

    Raises `InvalidInputError` `invalid_params`.
    """
    given = sys.stdin.read() if text == "-" else text
    if given is None:
        return {}
    try:
        params: Any = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"expected params as a JSON object, found text that is no JSON ({error})",
            code="invalid_params",
        ) from error
    if not isinstance(params, dict):
        raise InvalidInputError(
            f"expected params as a JSON object of keyword parameters, found {_kind(params)}; "
            'write {"name": value}',
            code="invalid_params",
        )
    return cast("dict[str, Any]", params)


def _kind(value: object) -> str:
    kinds = {"list": "an array", "str": "a string", "bool": "a boolean", "NoneType": "null"}
    return kinds.get(type(value).__name__, "a number")
