"""From `--workflow mod[:name]` to workflows.

Owns importing the application: which names are served, and what is said when a module is missing or
fails to import (its own frames, none of ours). Refuses a target that gives no workflow. Runs in the
process that serves, never in a supervisor.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from pyrula.workflows.engine.registry import WorkflowDefinition, definition_of, registered
from pyrula.workflows.stores.errors import ConfigurationError

_OURS = Path(__file__).parent
_MOST_FRAMES = 16


class ModuleFailed(ConfigurationError):
    """The user's module raised at import; `detail["frames"]` are the frames of their code."""

    default_code = "module_failed"


def load_workflows(targets: Sequence[str], app_dir: str = ".") -> list[WorkflowDefinition]:
    """Import every target from `app_dir` (put first on sys.path) and return what to serve.

    `mod:name` serves the workflow in that attribute, `mod` all that its import registered. Raises
    `ConfigurationError` `no_workflows`, `module_not_found`, `workflow_not_found`,
    `not_a_workflow`, and `ModuleFailed`.

    >>> load_workflows(["shop.orders:process", "shop.mails"])  # doctest: +SKIP
    """
    _put_first_on_path(app_dir)
    served: dict[str, WorkflowDefinition] = {}
    for target in targets:
        for definition in _load(target):
            served[definition.name] = definition
    if not served:
        raise ConfigurationError(
            "expected at least one workflow to serve, found none; pass --workflow mod[:name] with "
            "a module that defines @workflow functions",
            code="no_workflows",
            detail={"targets": list(targets)},
        )
    return list(served.values())


def _put_first_on_path(app_dir: str) -> None:
    folder = Path(app_dir).resolve()
    if not folder.is_dir():
        raise ConfigurationError(
            f"expected --app-dir to be a folder, found {app_dir!r}; create it or point elsewhere",
            code="app_dir_not_found",
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _load(target: str) -> list[WorkflowDefinition]:
    module_name, colon, attribute = target.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")) or (
        colon and not attribute.isidentifier()
    ):
        raise ConfigurationError(
            f"expected --workflow as module or module:name, found {target!r}",
            code="invalid_workflow_target",
        )
    before = set(registered())
    module = _imported(module_name)
    if colon:
        return [definition_of(_attribute(module, attribute))]
    # A module imported earlier (by another target) has registered its workflows already.
    added = set(registered()) - before
    return [d for name, d in registered().items() if name in added or _lives_in(d, module_name)]


def _lives_in(definition: WorkflowDefinition, module_name: str) -> bool:
    return f"{definition.fn.__module__}.".startswith(f"{module_name}.")


def _imported(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(
                f"expected a module {name!r}, found none; check the name and --app-dir",
                code="module_not_found",
            ) from error
        raise _failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _attribute(module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError as error:
        raise ConfigurationError(
            f"expected {module.__name__!r} to have an attribute {name!r}, found none; check "
            f"--workflow {module.__name__}:{name}",
            code="workflow_not_found",
        ) from error


def _failed(name: str, error: BaseException) -> ModuleFailed:
    return ModuleFailed(
        f"expected module {name!r} to import, found {type(error).__name__}: {error}",
        detail={"frames": user_frames(error)},
    )


def user_frames(error: BaseException) -> list[dict[str, Any]]:
    """The innermost frames of `error` that are neither ours nor the import system's."""
    frames = [
        {"file": frame.filename, "line": frame.lineno, "function": frame.name}
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen ") and not _is_ours(frame.filename)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append({"file": error.filename, "line": error.lineno, "function": "<syntax>"})
    return frames[-_MOST_FRAMES:]


def _is_ours(filename: str) -> bool:
    path = Path(filename)
    return path.is_relative_to(_OURS) or path.parts[-2:] == ("importlib", "__init__.py")
