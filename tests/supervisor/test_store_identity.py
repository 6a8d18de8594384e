"""A pool that has met its store never takes an emptied server for a fresh one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.supervisor.command import Supervisor
from tests.support.until import until
from tests.support.valkey import ValkeyServer


@pytest.mark.timeout(60)
def test_an_emptied_server_is_never_served_by_the_children_that_follow(folder: Path) -> None:
    with ValkeyServer() as server:
        words = ("--workflow", "tests.supervisor.ledgered:steady", "--store", server.url)
        with Supervisor(folder, *words, "--procs", "2", env={"LEDGER": "/dev/null"}) as supervisor:
            supervisor.wait_ready(2)
            server.command("FLUSHALL")
            until(
                lambda: len(supervisor.events("worker_failed")) >= 4,
                20,
                "the children and their successors refuse the server",
            )
            refused = supervisor.events("worker_failed")
            assert {event["code"] for event in refused} == {"store_emptied"}
            assert supervisor.ready() == []
