"""Named points at which a test can make the process die, hang or fail.

Owns the names and the arming; costs one comparison when unarmed. Armed by the environment variable
`PYRULA_CRASH_POINT=<name>:<kill|raise|stop>[:<nth>]`, read once at import: `kill` is SIGKILL to
this process, `stop` SIGSTOP, `raise` an error out of the engine.
"""

from __future__ import annotations

import os
import signal

from pyrula.workflows.stores.errors import ConfigurationError

POINTS = (
    "after_claim",
    "after_pending",
    "after_step_body",
    "before_done",
    "after_done",
    "before_finish",
    "after_finish",
    "before_park",
    "after_park",
)


class CrashPointReached(RuntimeError):
    """An armed `raise` point was reached; taken for a fault like any other."""


class _Armed:
    def __init__(self, text: str) -> None:
        name, _, rest = text.partition(":")
        action, _, nth = rest.partition(":")
        if (
            name not in POINTS
            or action not in {"kill", "raise", "stop"}
            or not (nth or "1").isdecimal()
        ):
            raise ConfigurationError(
                "expected PYRULA_CRASH_POINT=<name>:<kill|raise|stop>[:<nth>] with a name of "
                f"{', '.join(POINTS)}, found {text!r}",
                code="invalid_crash_point",
            )
        self.name = name
        self._action = action
        self._left = int(nth or 1)

    def reached(self) -> None:
        self._left -= 1
        if self._left != 0:
            return
        if self._action == "raise":
            raise CrashPointReached(self.name)
        os.kill(os.getpid(), signal.SIGKILL if self._action == "kill" else signal.SIGSTOP)


_text = os.environ.get("PYRULA_CRASH_POINT")
_armed = _Armed(_text) if _text else None


def crash_point(name: str) -> None:
    """Do what a test armed for `name`; nothing otherwise."""
    if _armed is not None and _armed.name == name:
        _armed.reached()
