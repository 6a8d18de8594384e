"""The journal's two directions: appends on the hot path, pages over the bulk connection.

Owns the answer of an append that may be left unawaited, and the paging of a read. Refuses to decode
events, and to let a page grow with the size of its events: the script reads in small pieces and
stops at a megabyte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence

from pyrula.workflows.stores.base import AppendReply, JournalPage, RunRef
from pyrula.workflows.stores.errors import TruncatedHistoryError
from pyrula.workflows.stores.valkey import decode
from pyrula.workflows.stores.valkey.calls import Caller, Request, server_refusal
from pyrula.workflows.stores.valkey.wire import NotSent, OutcomeUnknown, Reply, ServerError

SCRIPT_EVENTS = 1_000
SCRIPT_BYTES = 1 << 20


def append_request(
    sha: bytes, keys: tuple[str, str], token: str, first_seq: int, events: Sequence[bytes]
) -> Request:
    """The command of an append, spelled out: this is the hot path."""
    return (b"EVALSHA", sha, b"2", *keys, b"append_events", token, first_seq, *events)


class Appending:
    """An append on its way. Awaiting it gives the answer, repeating the request if that got lost.

    No coroutine and no task: most appends of a worker are these, and half are never awaited.
    """

    __slots__ = ("_caller", "_future", "_maxlen", "_request", "_run_id")

    def __init__(
        self,
        caller: Caller,
        request: Request,
        future: asyncio.Future[Reply],
        run_id: str,
        maxlen: int,
    ) -> None:
        self._caller = caller
        self._request = request
        self._future = future
        self._run_id = run_id
        self._maxlen = maxlen

    @property
    def arrived(self) -> bool:
        """Whether the events are in the journal; a refusal is an integer code."""
        future = self._future
        if not future.done() or future.cancelled() or future.exception() is not None:
            return False
        return type(future.result()) is not int

    def __await__(self) -> Generator[object, None, AppendReply]:
        try:
            reply: Reply = yield from self._future.__await__()
        except (NotSent, OutcomeUnknown) as error:
            reply = yield from self._caller.again(self._request, error).__await__()
        except ServerError as error:
            raise server_refusal(error, self._caller.url) from None
        answer = decode.append_reply(reply, self._run_id)
        if answer.length > self._maxlen:
            yield from self._trim().__await__()
        return answer

    async def _trim(self) -> None:
        _, _, _, run, journal, _, token, *_ = self._request
        keys = (str(run), str(journal))
        await self._caller.run(
            b"trim_journal", keys, token, self._maxlen, what=f"run {self._run_id}"
        )


async def read_journal(
    caller: Caller,
    keys: tuple[str, str],
    ref: RunRef,
    first_seq: int,
    *,
    max_events: int,
    max_bytes: int,
) -> JournalPage:
    """Events from `first_seq` on, as many script calls as it takes to fill the limits."""
    events: list[bytes] = []
    while True:
        length, trimmed, piece = await caller.run(
            b"read_journal",
            keys,
            first_seq + len(events),
            min(max_events - len(events), SCRIPT_EVENTS),
            max(1, min(max_bytes, SCRIPT_BYTES)),
            what=f"run {ref.run_id}",
        )
        if first_seq <= trimmed:
            raise _truncated(ref, first_seq, trimmed)
        fitting = _fitting(piece, max_bytes, least=0 if events else 1)
        events += fitting
        max_bytes -= sum(map(len, fitting))
        done = first_seq + len(events) > length or len(events) >= max_events
        if done or not piece or len(fitting) < len(piece) or max_bytes <= 0:
            return JournalPage(events=events, first_seq=first_seq, length=length, trimmed=trimmed)


def _fitting(piece: list[bytes], max_bytes: int, *, least: int) -> list[bytes]:
    # The script returns at least one event, which a later piece may have no room for.
    for count, event in enumerate(piece):
        max_bytes -= len(event)
        if max_bytes < 0 and count >= least:
            return piece[:count]
    return piece


def _truncated(ref: RunRef, first_seq: int, trimmed: int) -> TruncatedHistoryError:
    return TruncatedHistoryError(
        f"expected the events of {ref.run_id} from {first_seq} on, found that the first {trimmed} "
        "were trimmed; the run can't be replayed",
        detail={"missing": trimmed},
    )
