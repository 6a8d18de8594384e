"""The channel and the health pipe: neither end blocks, nothing is torn, nothing is guessed."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

import msgspec
import pytest

from pyrula.supervisor.certificate import Cause, Certificate, Frame
from pyrula.supervisor.link import (
    MAX_PACKET,
    BootFailed,
    Channel,
    ChildSetup,
    Drain,
    Draining,
    HealthReader,
    HealthWriter,
    Hint,
    Message,
    MessageTooLarge,
    Ready,
    Settle,
    Settled,
    Stats,
    Tick,
    packets,
)

A_DEATH = Certificate(incarnation="h-1", slot=1, pid=9, cause=Cause.KILLED, issued_at=1.0)
EACH_KIND: tuple[Message, ...] = (
    Ready(),
    BootFailed(code="c", message="m", exit=2, frames=(Frame(file="a.py", line=1, function="f"),)),
    Stats(shards={"w": 3}, runs=2, loop_lag_p50_ms=0.1, loop_lag_p99_ms=2.5),
    Settled(id="h-1", got={"w": [1]}),
    Draining(),
    Settle(certificate=A_DEATH),
    Hint(got={"w": [1, 2]}),
    Tick(),
    Drain(),
)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    parent, child = Channel.pair()
    yield parent, child
    parent.close()
    child.close()


def filled(channel: Channel) -> int:
    """Settle messages until one has to wait; how many."""
    count = 0
    while not channel.pending:
        channel.send(Settle(certificate=A_DEATH))
        count += 1
    return count


def drained(reader: Channel, writer: Channel) -> list[Message]:
    """All that comes while the writer sends what waits."""
    received: list[Message] = []
    while (more := reader.receive()) or writer.pending:
        received += more
        writer.flush()
    return received


def test_every_kind_arrives_as_it_was_sent(ends: tuple[Channel, Channel]) -> None:
    parent, child = ends
    for message in EACH_KIND:
        child.send(message)
    assert parent.receive() == list(EACH_KIND)


def test_what_does_not_fit_the_socket_waits_in_order(ends: tuple[Channel, Channel]) -> None:
    parent, child = ends
    count = filled(child)
    child.send(Draining())
    assert drained(parent, child) == [*[Settle(certificate=A_DEATH)] * count, Draining()]


def test_news_is_dropped_rather_than_kept_waiting(ends: tuple[Channel, Channel]) -> None:
    parent, child = ends
    count = filled(child)
    child.send(Tick())
    assert drained(parent, child) == [Settle(certificate=A_DEATH)] * count


def test_one_that_floods_is_read_a_batch_at_a_time(ends: tuple[Channel, Channel]) -> None:
    parent, child = ends
    count = filled(child)
    assert 0 < len(parent.receive()) < count


def test_a_send_to_a_peer_that_never_reads_returns_at_once(ends: tuple[Channel, Channel]) -> None:
    _, child = ends
    filled(child)
    began = time.monotonic()
    for _ in range(100):
        child.send(Stats(runs=1))
    assert time.monotonic() - began < 0.5


def test_a_peer_that_is_gone_closes_and_never_raises(ends: tuple[Channel, Channel]) -> None:
    parent, child = ends
    parent.close()
    child.send(Ready())
    child.send(Ready())
    assert child.receive() == []
    assert child.closed


def test_what_was_sent_before_a_death_is_read_before_the_end(ends: tuple[Channel, Channel]) -> None:
    parent, child = ends
    child.send(EACH_KIND[1])
    child.close()
    assert parent.receive() == [EACH_KIND[1]]
    assert parent.closed


def test_an_unreadable_packet_is_skipped() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(ours)
    theirs.send(b"{}")
    theirs.send(b"\xff\x00")
    theirs.send(packets(Ready())[0])
    assert channel.receive() == [Ready()]
    channel.close()
    theirs.close()


@pytest.mark.parametrize("kind", ["hint", "settled"])
def test_a_large_map_is_split_and_says_the_same(kind: str) -> None:
    got = {f"workflow-{n}": list(range(200)) for n in range(30)} | {"big": list(range(5_000))}
    message: Message = Hint(got=got) if kind == "hint" else Settled(id="h-1", got=got)
    pieces = packets(message, limit=2_000)
    assert len(pieces) > 10
    assert max(map(len, pieces)) <= 2_000
    together: dict[str, list[int]] = {}
    decoded = [msgspec.json.decode(piece, type=Message) for piece in pieces]
    for one in decoded:
        assert isinstance(one, Hint | Settled)
        for name, shards in one.got.items():
            together.setdefault(name, []).extend(shards)
    assert {name: sorted(shards) for name, shards in together.items()} == got
    if kind == "settled":
        more = [one.more for one in decoded if isinstance(one, Settled)]
        assert more == [True] * (len(decoded) - 1) + [False]


def test_a_boot_failure_is_shortened_until_it_fits() -> None:
    frames = tuple(Frame(file="f" * 100, line=n, function="g") for n in range(2_000))
    failure = BootFailed(code="c", message="m" * 200_000, exit=1, frames=frames)
    (data,) = packets(failure)
    assert len(data) <= MAX_PACKET
    short = msgspec.json.decode(data, type=Message)
    assert isinstance(short, BootFailed)
    assert (short.code, short.exit, short.frames[-1].line) == ("c", 1, 1_999)


def test_what_can_not_be_split_is_refused(ends: tuple[Channel, Channel]) -> None:
    parent, child = ends
    with pytest.raises(MessageTooLarge, match="expected a Stats of at most"):
        child.send(Stats(shards={"w" * MAX_PACKET: 1}))
    child.send(Ready())
    assert parent.receive() == [Ready()]


def test_one_packet_of_the_largest_size_always_fits_an_empty_socket(
    ends: tuple[Channel, Channel],
) -> None:
    parent, child = ends
    name = "w" * (MAX_PACKET - len(packets(Hint(got={"": [1]}))[0]))
    child.send(Hint(got={name: [1]}))
    assert parent.receive() == [Hint(got={name: [1]})]


def pipe() -> tuple[HealthReader, HealthWriter]:
    read, write = os.pipe()
    return HealthReader(read), HealthWriter(write)


def test_health_frames_arrive_whole() -> None:
    reader, writer = pipe()
    for n in range(3):
        writer.write(at_ns=n, loop_lag_us=n * 10, runs=n)
    assert [(f.at_ns, f.loop_lag_us, f.runs, f.dropped) for f in reader.read()] == [
        (0, 0, 0, 0),
        (1, 10, 1, 0),
        (2, 20, 2, 0),
    ]
    assert reader.read() == []


def test_a_full_health_pipe_counts_and_never_blocks() -> None:
    reader, writer = pipe()
    for n in range(10_000):
        writer.write(at_ns=n, loop_lag_us=2**40, runs=1)
    got = 0
    while frames := reader.read():
        got += len(frames)
        assert frames[0].loop_lag_us == 2**32 - 1
    writer.write(at_ns=1, loop_lag_us=0, runs=0)
    assert reader.read()[0].dropped == 10_000 - got


def test_the_password_of_the_store_is_not_in_the_repr_of_a_setup() -> None:
    assert "store_url" not in {
        name for name, field in ChildSetup.__dataclass_fields__.items() if field.repr
    }
