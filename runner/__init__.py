"""Durable workflows in plain Python: the public names, each loaded when it is first used.

Owns nothing but the table of names. Every name has one home below; nothing inside the package
imports from here, so that importing one submodule never loads the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyrula.workflows.client import RunHandle, WorkflowClient
    from pyrula.workflows.engine.context import Context, ContextError
    from pyrula.workflows.engine.failures import RemoteError
    from pyrula.workflows.engine.registry import step, workflow
    from pyrula.workflows.engine.replay import ReplayState, reconstruct_state, replay_all_events
    from pyrula.workflows.engine.retry import Retry
    from pyrula.workflows.stores.errors import (
        ConfigurationError,
        ConflictError,
        IncompatibleUpgradeError,
        InvalidInputError,
        JournalFormatError,
        JournalRolledBack,
        PayloadError,
        PyrulaError,
        ResultTimeout,
        RunCancelledError,
        RunFailedError,
        RunFinishedError,
        RunNotFoundError,
        StoreEmptied,
        StoreError,
        StoreUnavailable,
        TokenRefused,
        TruncatedHistoryError,
        WrongServer,
    )
    from pyrula.workflows.stores.memory.store import MemoryStore
    from pyrula.workflows.stores.valkey.store import ValkeyStore
    from pyrula.workflows.worker.options import WorkerOptions
    from pyrula.workflows.worker.worker import WorkflowWorker

_HOMES = {
    "client": ("RunHandle", "WorkflowClient"),
    "engine.context": ("Context", "ContextError"),
    "engine.registry": ("step", "workflow"),
    "engine.replay": ("ReplayState", "reconstruct_state", "replay_all_events"),
    "engine.retry": ("Retry",),
    "engine.failures": ("RemoteError",),
    "stores.errors": (
        "ConfigurationError",
        "ConflictError",
        "IncompatibleUpgradeError",
        "InvalidInputError",
        "JournalFormatError",
        "JournalRolledBack",
        "PayloadError",
        "PyrulaError",
        "ResultTimeout",
        "RunCancelledError",
        "RunFailedError",
        "RunFinishedError",
        "RunNotFoundError",
        "StoreEmptied",
        "StoreError",
        "StoreUnavailable",
        "TokenRefused",
        "TruncatedHistoryError",
        "WrongServer",
    ),
    "stores.memory.store": ("MemoryStore",),
    "stores.valkey.store": ("ValkeyStore",),
    "worker.options": ("WorkerOptions",),
    "worker.worker": ("WorkflowWorker",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ConfigurationError",
    "ConflictError",
    "Context",
    "ContextError",
    "IncompatibleUpgradeError",
    "InvalidInputError",
    "JournalFormatError",
    "JournalRolledBack",
    "MemoryStore",
    "PayloadError",
    "PyrulaError",
    "RemoteError",
    "ReplayState",
    "ResultTimeout",
    "Retry",
    "RunCancelledError",
    "RunFailedError",
    "RunFinishedError",
    "RunHandle",
    "RunNotFoundError",
    "StoreEmptied",
    "StoreError",
    "StoreUnavailable",
    "TokenRefused",
    "TruncatedHistoryError",
    "ValkeyStore",
    "WorkerOptions",
    "WorkflowClient",
    "WorkflowWorker",
    "WrongServer",
    "reconstruct_state",
    "replay_all_events",
    "step",
    "workflow",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return __all__
