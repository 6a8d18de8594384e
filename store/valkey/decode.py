"""Replies of scripts as the values of `base.py`.

Owns the shape of each reply, next to nothing else: one function a reply. Refuses user payloads:
events pass through as the bytes they are.
"""

from __future__ import annotations

from typing import Any, cast

from pyrula.workflows.stores.base import (
    AppendReply,
    Claimed,
    ClaimReply,
    ClaimRequest,
    Flag,
    Hint,
    Lock,
    RunInfo,
    RunRef,
)
from pyrula.workflows.stores.valkey.codes import refusal

Reply = Any

# Looking a flag up costs a tenth of calling Flag().
FLAGS = tuple(Flag(bits) for bits in range(8))


def text(value: Any) -> str:
    """A bulk reply as text; empty when there was none."""
    return value.decode() if isinstance(value, bytes) else ""


def append_reply(reply: Reply, run_id: str) -> AppendReply:
    """The reply of `append_events`; raises what it refused."""
    if type(reply) is int:
        raise refusal(reply, f"run {run_id}")
    length, bits = cast("tuple[int, int]", reply)
    return AppendReply(length, FLAGS[bits])


def claim_reply(reply: Reply, request: ClaimRequest) -> ClaimReply:
    """The reply of `claim_runs`."""
    runs = [_claimed(row, request) for row in reply[1:]]
    return ClaimReply(runs=runs, now_ms=reply[0])


def run_info(row: list[Any], ref: RunRef) -> RunInfo:
    """A row of the include `run_info`."""
    status, owner, created, updated, due, epoch, lost, incarnation, trimmed, length = row
    return RunInfo(
        ref=ref,
        status=status.decode(),
        owner=owner.decode() if owner is not None else None,
        created_ms=int(created),
        updated_ms=int(updated),
        due_ms=int(due) if due is not None else None,
        events=int(trimmed or 0) + length,
        epoch=int(epoch or 0),
        lost=int(lost or 0),
        incarnation=incarnation.decode() if incarnation else None,
    )


def hint(message: bytes) -> Hint | None:
    r"""A published message; None for one that this build doesn't know.

    >>> hint(b"w\norder\n7")
    Hint(kind='work', workflow='order', shard=7, run_id='', terminal=None)
    """
    kind, *fields = message.split(b"\n", 4)
    match kind, fields:
        case b"w", [workflow, shard]:
            return Hint(kind="work", workflow=workflow.decode(), shard=int(shard))
        case b"c", [workflow, shard, run_id]:
            return Hint(
                kind="cancel", workflow=workflow.decode(), shard=int(shard), run_id=run_id.decode()
            )
        case b"d", [workflow, shard, run_id, terminal]:
            return Hint(
                kind="done",
                workflow=workflow.decode(),
                shard=int(shard),
                run_id=run_id.decode(),
                terminal=terminal or None,
            )
        case _:
            return None


def _claimed(row: list[Any], request: ClaimRequest) -> Claimed:
    run_id, epoch, length, trimmed, flags, lost, page = row
    ref = RunRef(request.workflow, run_id.decode(), request.shard)
    token = f"{epoch}:{request.nonce}"
    return Claimed(
        lock=Lock(ref=ref, token=token, epoch=epoch, incarnation=request.incarnation),
        page=page,
        length=length,
        trimmed=trimmed,
        flags=FLAGS[int(flags)],
        lost=lost,
    )
