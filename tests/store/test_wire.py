"""The multiplexed connection against a real server."""

from __future__ import annotations

import pytest

from pyrula.workflows.stores.valkey.link import Link
from pyrula.workflows.stores.valkey.url import StoreUrl
from pyrula.workflows.stores.valkey.wire import ServerError


async def test_replies_come_back_in_order_and_errors_hit_only_their_call(valkey_url: str) -> None:
    link = Link(StoreUrl.parse(valkey_url))
    link.start()
    await link.ready(5)
    first = link.call(b"ECHO", "a")
    broken = link.call(b"NOSUCHCOMMAND")
    last = link.call(b"ECHO", "b")
    assert await first == b"a"
    with pytest.raises(ServerError) as refused:
        await broken
    assert refused.value.code == "ERR"
    assert await last == b"b"
    await link.close()
