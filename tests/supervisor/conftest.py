"""A folder with a short path: a unix socket's address holds 107 bytes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder of this test alone."""
    made = Path(tempfile.mkdtemp(prefix="pyrula-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)
