"""Just enough RESP2 to cut a stream of bytes into whole requests and replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The raw bytes of one value after the other, until the peer closes."""
    buffer = bytearray()
    while data := await reader.read(65536):
        buffer += data
        start = 0
        while (end := _end(buffer, start)) is not None:
            yield bytes(buffer[start:end])
            start = end
        del buffer[:start]


def words(request: bytes) -> tuple[bytes, ...]:
    """The arguments of a request (an array of bulk strings)."""
    found: list[bytes] = []
    position = request.index(b"\r\n") + 2
    while position < len(request):
        line = request.index(b"\r\n", position)
        length = int(request[position + 1 : line])
        found.append(request[line + 2 : line + 2 + length])
        position = line + 2 + length + 2
    return tuple(found)


def _end(buffer: bytearray, start: int) -> int | None:
    """Where the value that begins at `start` ends, or None if it isn't all there."""
    line = buffer.find(b"\r\n", start)
    if line < 0:
        return None
    kind, after = chr(buffer[start]), line + 2
    if kind == "$":
        length = int(buffer[start + 1 : line])
        end = after + length + 2 if length >= 0 else after
        return end if end <= len(buffer) else None
    if kind == "*":
        position: int | None = after
        for _ in range(int(buffer[start + 1 : line])):
            if position is None:
                return None
            position = _end(buffer, position)
        return position
    return after
