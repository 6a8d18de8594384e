"""The public names: each has one home, is sorted, lazy, and what the guides import."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import pyrula.workflows as facade
from pyrula.workflows.stores import errors

# The import lines of the three spec pages, as far as the issues so far cover them.
IMPORTED_BY_THE_GUIDES = (
    "WorkflowWorker",
    "WorkerOptions",
    "ValkeyStore",
    "replay_all_events",
    "reconstruct_state",
    "ReplayState",
    "workflow",
    "step",
)


def test_public_names_are_sorted_and_all_have_a_home() -> None:
    assert facade.__all__ == sorted(facade.__all__)
    assert set(facade.__all__) == set(facade._HOME_OF)
    homes = [name for names in facade._HOMES.values() for name in names]
    assert len(homes) == len(set(homes))


@pytest.mark.parametrize("name", facade.__all__)
def test_a_public_name_is_the_one_that_its_home_defines(name: str) -> None:
    found = getattr(facade, name)
    assert found.__module__ == f"pyrula.workflows.{facade._HOME_OF[name]}"
    assert getattr(import_module(found.__module__), name) is found
    assert name in dir(facade)


@pytest.mark.parametrize("name", IMPORTED_BY_THE_GUIDES)
def test_what_the_guides_import_is_there(name: str) -> None:
    assert name in facade.__all__
    assert callable(getattr(facade, name))


def test_the_whole_error_tree_is_public() -> None:
    tree = {
        name
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, errors.PyrulaError)
    }
    assert tree <= set(facade.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'workflwo'"):
        getattr(facade, "workflwo")  # noqa: B009  a type checker would see through it


def test_importing_the_package_loads_no_store_and_no_worker() -> None:
    code = (
        "import sys, pyrula.workflows as w; w.PyrulaError; "
        "print([m for m in sys.modules if 'valkey' in m or 'worker' in m or 'engine' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
