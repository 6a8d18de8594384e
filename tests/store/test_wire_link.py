"""A link comes up, notices silence, comes back, and says why it can't."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from pyrula.workflows.stores.valkey.link import Link, Timing
from pyrula.workflows.stores.valkey.url import StoreUrl
from pyrula.workflows.stores.valkey.wire import Connection, NotSent, OutcomeUnknown, ServerError
from tests.store.test_wire import QUICK, linked
from tests.support.proxy import Fault, FaultProxy, command
from tests.support.until import eventually
from tests.support.valkey import ValkeyServer

CANARY = "canary-7f3a"


async def test_a_half_open_connection_is_noticed_and_replaced(
    valkey: ValkeyServer, tmp_path: Path
) -> None:
    reasons: list[str] = []
    async with FaultProxy(valkey.socket, tmp_path / "p") as proxy:
        link = Link(StoreUrl.parse(proxy.url), on_down=reasons.append, timing=QUICK)
        link.start()
        await link.ready(5)
        proxy.blackhole = True
        with pytest.raises(OutcomeUnknown):
            await link.call(b"ECHO", "into the void")
        await eventually(lambda: reasons)
        assert "no answer within" in reasons[0]
        proxy.blackhole = False
        await link.ready(5)
        assert await link.call(b"ECHO", "back") == b"back"
        await link.close()


async def test_an_idle_connection_that_answers_pings_stays(
    valkey: ValkeyServer, tmp_path: Path
) -> None:
    timing = Timing(idle=0.02, deadline=0.2)
    path = tmp_path / "p"
    async with FaultProxy(valkey.socket, path) as proxy, linked(proxy.url, timing) as link:
        pings = len(proxy.log)
        await eventually(lambda: len(proxy.log) >= pings + 5)
        assert link.ups == 1


async def test_a_link_survives_a_flapping_network(valkey: ValkeyServer, tmp_path: Path) -> None:
    ups: list[bool] = []
    async with FaultProxy(valkey.socket, tmp_path / "p") as proxy:
        link = Link(StoreUrl.parse(proxy.url), on_up=ups.append, timing=QUICK)
        link.start()
        await link.ready(5)
        for _ in range(20):
            await proxy.flap(1, lambda: link.up)
            await eventually(lambda: not link.up)
        await link.ready(5)
        assert await link.call(b"ECHO", "here") == b"here"
        await link.close()
    assert ups == [True] + [False] * 20


async def test_calls_resume_after_a_killed_server_has_loaded_its_log(
    private_valkey: Callable[..., ValkeyServer],
) -> None:
    # Slow enough to be caught loading: it serves clients after each 1024 commands of the log.
    server = private_valkey(aof="always", key_load_delay="150")
    async with linked(server.url) as link:
        for number in range(5_000):
            link.call(b"SET", f"key-{number}", "x" * 10)
        assert await link.call(b"INCR", "n") == 1
        server.kill()
        await eventually(lambda: not link.up)
        with pytest.raises(NotSent):
            await link.call(b"INCR", "n")
        seen: list[str] = []
        server.start(wait=False)

        def is_up() -> bool:
            seen.append(getattr(link.problem, "code", "") if link.problem else "")
            return link.up

        await eventually(is_up, 10)
        assert "LOADING" in seen
        assert await link.call(b"INCR", "n") == 2


async def test_a_server_that_is_away_is_named_without_its_password(tmp_path: Path) -> None:
    link = Link(StoreUrl.parse(f"unix://app:{CANARY}@{tmp_path}/nobody"), timing=QUICK)
    link.start()
    with pytest.raises(NotSent) as missing:
        await link.ready(0.1)
    with pytest.raises(NotSent):
        await link.call(b"PING")
    assert f"{tmp_path}/nobody" in str(missing.value)
    assert CANARY not in "".join(traceback.format_exception(missing.value))
    await link.close()


async def test_a_paused_server_ends_the_wait_and_is_used_when_it_wakes(
    private_valkey: Callable[..., ValkeyServer],
) -> None:
    server = private_valkey()
    server.pause()
    link = Link(StoreUrl.parse(server.url), timing=Timing(connect=0.1, backoff_cap=0.1))
    link.start()
    with pytest.raises(NotSent):
        await link.ready(0.3)
    server.resume()
    await link.ready(5)
    await link.close()


@pytest.mark.parametrize("login", [f"app:{CANARY}@", f":{CANARY}@", ""])
async def test_a_wrong_login_is_refused_at_once_and_never_quoted(
    private_valkey: Callable[..., ValkeyServer], login: str
) -> None:
    server = private_valkey(requirepass="right")
    link = Link(StoreUrl.parse(f"unix://{login}{server.socket}"), timing=QUICK)
    link.start()
    with pytest.raises(ServerError) as refused:
        await link.ready(5)
    assert refused.value.code == ("WRONGPASS" if login else "NOAUTH")
    # Below this test's own frame (which knows the login) not even the locals may show it.
    below = refused.value.__traceback__
    assert below is not None
    told = traceback.TracebackException(
        type(refused.value), refused.value, below.tb_next, capture_locals=True
    )
    assert CANARY not in "".join(told.format())
    await link.close()


async def test_calls_resume_behind_a_proxy_whose_server_was_away(
    private_valkey: Callable[..., ValkeyServer], tmp_path: Path
) -> None:
    server = private_valkey(aof="always")
    async with FaultProxy(server.socket, tmp_path / "p") as proxy, linked(proxy.url) as link:
        assert await link.call(b"INCR", "n") == 1
        server.kill()
        refusals = proxy.accepted
        await eventually(lambda: proxy.accepted >= refusals + 3)
        server.start()
        await link.ready(5)
        assert await link.call(b"INCR", "n") == 2


async def test_password_and_database_of_the_url_are_used(
    private_valkey: Callable[..., ValkeyServer],
) -> None:
    server = private_valkey(requirepass="right")
    async with linked(f"{server.url}?db=3") as link:
        await link.call(b"SET", "where", "three")
        clients: bytes = await link.call(b"CLIENT", b"INFO")
    assert b" name=pyrula " in clients
    assert b" db=3 " in clients


async def test_a_database_that_is_not_there_is_refused_at_once(valkey: ValkeyServer) -> None:
    link = Link(StoreUrl.parse(f"{valkey.url}?db=999"), timing=QUICK)
    link.start()
    with pytest.raises(ServerError, match="out of range"):
        await link.ready(5)
    await link.close()


async def test_no_traffic_passes_before_the_owner_approved_the_server(valkey: ValkeyServer) -> None:
    approvals: list[bool] = []

    async def approve(connection: Connection, first: bool) -> None:
        assert not link.up
        assert await connection.call(b"PING") == b"PONG"
        approvals.append(first)
        if len(approvals) == 1:
            raise LookupError("not the store that I knew")

    link = Link(StoreUrl.parse(valkey.url), on_connect=approve, timing=QUICK)
    link.start()
    with pytest.raises(LookupError):
        await link.ready(5)
    await eventually(lambda: link.up)
    assert approvals == [True, True]
    await link.close()


async def test_closing_fails_what_is_in_flight_as_unknown(
    valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with FaultProxy(valkey.socket, tmp_path / "p") as proxy:
        link = Link(StoreUrl.parse(proxy.url), timing=QUICK)
        link.start()
        await link.ready(5)
        stalled = proxy.lose_reply(command("INCR"), fault=Fault.STALL)
        in_flight = link.call(b"INCR", "in-flight")
        async with asyncio.timeout(5):
            await stalled.hit.wait()
        queued = link.call(b"INCR", "queued")
        await link.close()
        await link.close()
        assert isinstance(in_flight.exception(), OutcomeUnknown)
        assert isinstance(queued.exception(), OutcomeUnknown | NotSent)
        with pytest.raises(NotSent):
            await link.call(b"PING")


async def test_closing_ends_at_whatever_moment_of_the_set_up(
    private_valkey: Callable[..., ValkeyServer],
) -> None:
    server = private_valkey(tcp=True)
    for url in (server.url, server.tcp_url):
        for ticks in range(60):
            link = Link(StoreUrl.parse(url), timing=QUICK)
            link.start()
            for _ in range(ticks // 3):
                await asyncio.sleep(0)
            async with asyncio.timeout(5):
                await link.close()

    def only_we_are_left() -> bool:
        clients: bytes = server.command("INFO", "clients")
        return b"connected_clients:1\r\n" in clients

    await eventually(only_we_are_left)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
async def test_tls_is_spoken_and_an_unknown_certificate_is_refused(
    valkey: ValkeyServer, tmp_path: Path
) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    request += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=pyrula test"]
    request += ["-addext", "subjectAltName=IP:127.0.0.1"]
    await asyncio.to_thread(subprocess.run, request, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    async with FaultProxy(valkey.socket, tls=context) as proxy:
        async with linked(f"{proxy.url}?ssl_ca_certs={certificate}") as link:
            assert await link.call(b"ECHO", "x" * 300_000) == b"x" * 300_000
        async with linked(f"{proxy.url}?ssl_cert_reqs=none") as link:
            assert await link.call(b"ECHO", "unchecked") == b"unchecked"
        stranger = Link(StoreUrl.parse(proxy.url), timing=QUICK)
        stranger.start()
        with pytest.raises(NotSent, match=r"(?i)certificate"):
            await stranger.ready(0.3)
        await stranger.close()
