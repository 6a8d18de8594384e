"""What the journal holds for the calls that a body is about to make.

Owns the comparison of what was recorded with what the code asks for, and the knowledge of how far
the recorded body got. A call that differs, one that was never recorded though later ones were, and
one that was recorded and is never made are all the same fault: `incompatible_upgrade`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from pyrula.workflows.engine.replay import CallRecord
from pyrula.workflows.engine.unwinding import Doomed, Unwinding
from pyrula.workflows.stores.errors import IncompatibleUpgradeError


class Records:
    """The recorded calls of one run, each served at most once.

    A call that differs from its record is told to `unwind` and raises `Doomed`.
    """

    def __init__(
        self, calls: Mapping[str, CallRecord], unwind: Callable[[Unwinding], None]
    ) -> None:
        self._unwind = unwind
        self._calls = dict(calls)
        # How far each leg got: leg -> highest index.
        self._last: dict[str, int] = {}
        flat = [int(path) for path in calls if "." not in path]
        if flat:
            self._last[""] = max(flat)
        for path in calls:
            if "." in path:
                for leg, index in _places(path):
                    self._last[leg] = max(index, self._last.get(leg, -1))

    def __len__(self) -> int:
        return len(self._calls)

    def take(
        self, path: str, kind: Literal["step", "timer"], name: str, inputs: str
    ) -> CallRecord | None:
        """The record of this call, None if it was never made."""
        if not self._last:
            return None
        record = self._calls.pop(path, None)
        if record is None:
            self._check_new(path, kind, name)
        elif (record.kind, record.name, record.inputs) != (kind, name, inputs):
            raise self._diverged(path, record, f"{kind} {name!r}", name)
        return record

    def check_gather(self, path: str) -> None:
        """Refuse a gather where something else was recorded."""
        record = self._calls.get(path)
        if record is not None:
            raise self._diverged(path, record, "a gather", "gather")

    def check_derived(self, path: str, what: str) -> None:
        """Refuse a derived value where something else was recorded."""
        record = self._calls.get(path)
        leg, index = next(_places(path))
        if record is not None or self._last.get(leg) == index:
            raise self._diverged(path, record, what, what)

    def overtaken(self, path: str) -> bool:
        """Whether the recorded body went on past this call without its outcome.

        Then the body itself gave the call up (by a timeout of its own, say) and does so again.
        """
        last = self._last
        return bool(last) and any(last.get(leg, -1) > index for leg, index in _places(path))

    def unserved(self) -> CallRecord | None:
        """A recorded call that the body has not made."""
        return next(iter(self._calls.values()), None)

    def _check_new(self, path: str, kind: str, name: str) -> None:
        leg, index = next(_places(path))
        if self._last.get(leg, -1) >= index:
            raise self._diverged(path, None, f"{kind} {name!r}", name)

    def _diverged(self, path: str, record: CallRecord | None, asked: str, name: str) -> Doomed:
        recorded = f"{record.kind} {record.name!r}" if record else "another kind of call"
        found = "the same call with other inputs" if recorded == asked else asked
        doomed = Doomed(
            IncompatibleUpgradeError(
                f"expected call {path} to be {recorded} as recorded, found {found}; deploy code "
                "that makes the same calls in the same order, or start a new run",
                detail={"path": path, "recorded": record.name if record else None, "asked": name},
            )
        )
        self._unwind(doomed)
        return doomed


def _places(path: str) -> Iterator[tuple[str, int]]:
    """The (leg, index) of a call, then of the gathers it is in, outwards."""
    leg, _, index = path.rpartition(".")
    yield (f"{leg}." if leg else "", int(index))
    if leg:
        yield from _places(leg.rpartition(".")[0])
