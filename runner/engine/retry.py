"""When a failed step is tried again.

Owns the arithmetic of a retry policy, pure and replayable: the jitter is derived from run, path and
try, so it is the same in every process. Refuses to sleep; the context does that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from pyrula.workflows.stores.errors import InvalidInputError, PayloadError


@dataclass(frozen=True, kw_only=True)
class Retry:
    """A step's retry policy; delays in seconds.

    Try k (from 1) is followed by a delay of `first_delay * factor ** (k - 1)`, at most `cap`,
    shortened by up to `jitter` of itself. Final at once is an exception of a `non_retryable` type,
    one for which `retry_if` returns false (or fails itself), and a result that can't be journaled.
    Raises `InvalidInputError` `invalid_retry`.

    >>> Retry(attempts=3, jitter=0.0).delay_after(2, "run", "0")
    2.0
    """

    attempts: int = 1
    first_delay: float = 1.0
    factor: float = 2.0
    cap: float = 60.0
    jitter: float = 0.1
    non_retryable: tuple[type[Exception], ...] = ()
    retry_if: Callable[[Exception], bool] | None = None

    def __post_init__(self) -> None:
        rules = (
            (self.attempts >= 1, "attempts", ">= 1", self.attempts),
            (self.first_delay >= 0, "first_delay", ">= 0 seconds", self.first_delay),
            (self.factor >= 1, "factor", ">= 1", self.factor),
            (self.cap >= 0, "cap", ">= 0 seconds", self.cap),
            (0 <= self.jitter <= 1, "jitter", "between 0 and 1", self.jitter),
        )
        for holds, key, rule, found in rules:
            if not holds:
                raise InvalidInputError(
                    f"expected retry {key} to be {rule}, found {found!r}", code="invalid_retry"
                )

    def allows(self, error: BaseException, tries: int) -> bool:
        """Whether another try may follow the `tries`-th, which ended in `error`."""
        if tries >= self.attempts or not isinstance(error, Exception):
            return False
        if isinstance(error, (PayloadError, *self.non_retryable)):
            return False
        try:
            return self.retry_if is None or bool(self.retry_if(error))
        except Exception:  # noqa: BLE001  a policy that fails must not hide the step's own error
            return False

    def delay_after(self, tries: int, run_id: str, path: str) -> float:
        """Seconds between the `tries`-th try and the next."""
        try:
            delay = min(self.cap, self.first_delay * self.factor ** (tries - 1))
        except OverflowError:
            delay = self.cap
        digest = hashlib.blake2b(f"{run_id}:{path}:{tries}".encode(), digest_size=8).digest()
        return delay * (1 - self.jitter * (int.from_bytes(digest, "big") / 2**64))


NO_RETRY = Retry()
