"""Submitting runs and awaiting their results.

Owns `WorkflowClient` and `RunHandle`: ids and idempotency keys, where a run is placed, and waiting
that is woken instead of polled. Refuses to run workflows; it needs nothing but a store, so a client
may know workflows only by name.

Waiting: one reply channel per client. Subscribe, have it acknowledged, then register with the run
and look in one step (`Store.watch`), then wait: whatever happens after the look is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from pyrula.workflows.engine.payload import encode
from pyrula.workflows.engine.registry import definition_of
from pyrula.workflows.engine.replay import replay_all_events
from pyrula.workflows.shards.hashing import shard_of
from pyrula.workflows.stores.base import (
    TERMINAL,
    Hint,
    Listener,
    Reservation,
    RunInfo,
    RunRef,
    Status,
    Store,
    Submission,
    Watch,
)
from pyrula.workflows.stores.errors import (
    ConflictError,
    InvalidInputError,
    ResultTimeout,
    RunCancelledError,
    RunFailedError,
    RunNotFoundError,
    StoreUnavailable,
)
from pyrula.workflows.stores.events import (
    AnyEvent,
    Raw,
    RunComplete,
    RunError,
    RunInit,
    UnknownEvent,
    pack,
    unpack,
)
from pyrula.workflows.stores.names import check_owner, check_run_id, check_workflow_name
from pyrula.workflows.stores.seams import Seams

T = TypeVar("T")
PARAMS_LIMIT = 1 << 20
POLL_S = 1.0  # the floor when a wake-up is lost or can't arrive


class RunHandle:
    """One run, by workflow name and id; cheap to make, knows nothing until asked."""

    def __init__(self, client: WorkflowClient, name: str, run_id: str) -> None:
        self._client = client
        self.name = name
        self.run_id = run_id

    async def info(self) -> RunInfo:
        """What is known of the run. Raises `RunNotFoundError`."""
        return await self._client.store.info(await self._client.ref(self.name, self.run_id))

    async def status(self) -> Status:
        """The status word. Raises `RunNotFoundError`."""
        return (await self.info()).status

    async def result(self, timeout: float | None = None, *, as_type: type[T] | None = None) -> Any:
        """Wait (seconds; None for ever) until the run ended and return what it returned.

        Raises `RunFailedError`, `RunCancelledError`, `ResultTimeout`, `RunNotFoundError`, and
        `StoreUnavailable` if the store is away at first; later outages are waited out.
        """
        terminal = await self._client.terminal(self, timeout)
        if isinstance(terminal, RunError):
            raise _run_failure(terminal)
        return msgspec.json.decode(bytes(terminal.result), type=as_type or Any)

    async def events(self) -> list[AnyEvent | UnknownEvent]:
        """The run's whole journal. Raises `RunNotFoundError`, `TruncatedHistoryError`."""
        return await replay_all_events(self._client.store, self.name, self.run_id)

    async def cancel(self) -> None:
        """Ask the run to end. Raises `RunFinishedError`, `RunNotFoundError`."""
        await self._client.store.cancel(await self._client.ref(self.name, self.run_id))


class WorkflowClient:
    """Submits and follows runs in `store`, which it opens at first use and leaves open.

    >>> client = WorkflowClient(store)                              # doctest: +SKIP
    >>> run = await client.submit("sync_account", {"account": "a-1"}, owner="tenant-42")
    ... # doctest: +SKIP
    >>> await run.result(timeout=30)                                # doctest: +SKIP
    """

    def __init__(self, store: Store, *, seams: Seams | None = None) -> None:
        self.store = store
        self._seams = seams or Seams()
        self._member = f"client-{self._seams.ids.token()[:20]}"
        self._counts: dict[str, int] = {}
        self._listener: Listener | None = None
        self._opening = asyncio.Lock()
        self._watched: dict[tuple[str, str], set[asyncio.Event]] = {}
        self._arrived: dict[tuple[str, str], bytes] = {}
        self._opened = False

    def handle(self, name: str | Callable[..., Any], run_id: str) -> RunHandle:
        """A handle on a run that exists (or not: asking it tells)."""
        return RunHandle(self, _name_of(name), run_id)

    async def submit(
        self,
        workflow: str | Callable[..., Any],
        params: Mapping[str, Any] | None = None,
        *,
        owner: str | None = None,
        run_id: str | None = None,
        idempotency_key: str | None = None,
        delay: float | timedelta | None = None,
        trigger: str = "api",
    ) -> RunHandle:
        """Accept a run; it is durable when this returns.

        `owner` is the tenant; `delay` (seconds ≥ 0 or timedelta) postpones the first claim. The
        same `run_id` or `idempotency_key` again gives the same run; with both, the key decides and
        the run keeps the id it was first given. Raises `InvalidInputError` or
        `PayloadError` for names, ids or params that break a rule, `ConflictError` `run_exists` or
        `idempotency_mismatch` when the id or key belongs to a submission with other params.
        """
        name = check_workflow_name(_name_of(workflow))
        given = _checked_params(params)
        digest = hashlib.sha256(name.encode() + b"\0" + given).hexdigest()[:32]
        key_id = None if idempotency_key is None else _key_id(name, idempotency_key)
        chosen = self._run_id(run_id, key_id)
        tenant = None if owner is None else check_owner(owner)
        delay_ms = _delay_ms(delay)
        # All is checked by now: asking for the shard records the name.
        ref = await self.ref(name, chosen)
        if key_id is not None and run_id is not None:
            kept = await self.store.reserve_key(key_id, Reservation(chosen, digest))
            if kept.digest != digest:
                raise _key_mismatch(idempotency_key)
            ref = await self.ref(name, kept.run_id)
        init = RunInit(
            t=int(self._seams.clock.wall() * 1000),
            name=name,
            params=Raw(given),
            trigger=trigger,
            owner=tenant,
        )
        submission = Submission(
            ref=ref, init=pack(init), digest=digest, owner=tenant, delay_ms=delay_ms
        )
        try:
            await self.store.submit(submission)
        except ConflictError as error:
            if key_id is None or run_id is not None:
                raise
            raise _key_mismatch(idempotency_key) from error
        return RunHandle(self, name, ref.run_id)

    async def close(self) -> None:
        """Stop listening for results; the store is left open."""
        if self._listener is not None:
            await self._listener.close()
            self._listener = None

    async def ref(self, name: str, run_id: str) -> RunRef:
        """Where the run lives, by the shard count recorded for its name."""
        count = self._counts.get(name)
        if count is None:
            count = await self._registered(name)
        return RunRef(name, run_id, shard_of(run_id, count))

    async def terminal(self, run: RunHandle, timeout: float | None) -> RunComplete | RunError:
        """The terminal event of a run, waiting for it at most `timeout` seconds."""
        ref = await self.ref(run.name, run.run_id)
        try:
            async with asyncio.timeout(timeout):
                return await self._awaited(ref)
        except TimeoutError as error:
            raise ResultTimeout(
                f"expected run {run.run_id} to end within {timeout} s, found it still going; "
                "it goes on, ask again"
            ) from error

    async def _registered(self, name: str) -> int:
        async with self._opening:
            if not self._opened:
                await self.store.open()
                self._opened = True
            if name not in self._counts:
                registration = await self.store.register(name, serving=False)
                self._counts[name] = registration.shard_count
        return self._counts[name]

    # Waiting

    async def _awaited(self, ref: RunRef) -> RunComplete | RunError:
        await self._listen()
        key = (ref.workflow, ref.run_id)
        woken = asyncio.Event()
        self._watched.setdefault(key, set()).add(woken)
        looked = False
        try:
            while True:
                # Cleared before looking: a hint that arrives during the look must not be lost.
                woken.clear()
                seen = False
                try:
                    watch = await self.store.watch(ref, self._member)
                    terminal = self._arrived.get(key) or await self._terminal_bytes(ref, watch)
                    looked = seen = True
                except StoreUnavailable:
                    # The run doesn't fail when the store is away, so the wait for it doesn't.
                    if not looked:
                        raise
                    terminal = None
                if terminal is None:
                    await self._woken(woken, seen=seen)
                    terminal = self._arrived.get(key)
                if terminal is not None:
                    return _terminal_event(terminal)
        finally:
            waiting = self._watched[key]
            waiting.discard(woken)
            if not waiting:
                del self._watched[key]
                self._arrived.pop(key, None)

    async def _terminal_bytes(self, ref: RunRef, watch: Watch) -> bytes | None:
        if watch.status not in TERMINAL:
            return None
        if watch.terminal is not None:
            return watch.terminal
        info = await self.store.info(ref)
        return (await self.store.read_journal(ref, info.events)).events[-1]

    async def _woken(self, woken: asyncio.Event, *, seen: bool) -> None:
        # The hint may have come while the look failed: the subscription is often back first.
        sure = seen and self._listener is not None and not self._listener.degraded
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(30 * POLL_S if sure else POLL_S):
                await woken.wait()

    async def _listen(self) -> None:
        async with self._opening:
            if self._listener is None:
                self._listener = await self.store.listen(self._member, self._on_hint, self._on_gap)

    def _on_hint(self, hint: Hint) -> None:
        key = (hint.workflow, hint.run_id)
        waiting = self._watched.get(key)
        if hint.kind != "done" or not waiting:
            return
        if hint.terminal is not None:
            self._arrived[key] = hint.terminal
        for woken in waiting:
            woken.set()

    def _on_gap(self) -> None:
        for waiting in self._watched.values():
            for woken in waiting:
                woken.set()

    def _run_id(self, run_id: str | None, key_id: str | None) -> str:
        if run_id is not None:
            return check_run_id(run_id)
        # From the key alone the run's slot follows: no link between slots is needed.
        return key_id or self._seams.ids.token()


def _name_of(workflow: str | Callable[..., Any]) -> str:
    return workflow if isinstance(workflow, str) else definition_of(workflow).name


def _key_id(name: str, key: str) -> str:
    if not key.strip() or len(key) > 1_024:
        raise InvalidInputError(
            "expected an idempotency key of 1 to 1024 characters, found "
            f"{len(key)} of them; choose another",
            code="invalid_idempotency_key",
        )
    return hashlib.sha256(f"{name}\0{key}".encode()).hexdigest()[:32]


def _key_mismatch(key: str | None) -> ConflictError:
    return ConflictError(
        f"expected idempotency key {key!r} to come with the params it was first used with, found "
        "others; use a new key for a new submission",
        code="idempotency_mismatch",
    )


def _checked_params(params: Any) -> bytes:
    given: Mapping[Any, Any] = {} if params is None else params
    is_object = params is None or isinstance(params, Mapping)
    if not is_object or not all(isinstance(key, str) for key in given):
        raise InvalidInputError(
            "expected params to be an object of keyword parameters, found "
            f"{type(given).__qualname__}; write them as a dict with string keys",
            code="invalid_params",
        )
    return encode(dict(sorted(given.items())), "the params of the run", PARAMS_LIMIT)


def _delay_ms(delay: float | timedelta | None) -> int:
    if delay is None:
        return 0
    seconds: Any = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not isinstance(seconds, int | float) or not 0 <= seconds < 10**10:
        raise InvalidInputError(
            f"expected a delay of 0 seconds or more, found {delay!r}", code="invalid_delay"
        )
    return round(seconds * 1000)


def _terminal_event(raw: bytes) -> RunComplete | RunError:
    event = unpack(raw)
    if isinstance(event, RunComplete | RunError):
        return event
    raise RunNotFoundError(
        "expected the run's last event to be terminal, found another; its journal was trimmed"
    )


def _run_failure(event: RunError) -> RunFailedError | RunCancelledError:
    if event.code == "cancelled":
        return RunCancelledError(event.message)
    return RunFailedError(
        event.message, code=event.code, error_type=event.error_type, detail=event.detail
    )
