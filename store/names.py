"""The grammar of names and ids, checked once at the edge.

Owns what a workflow name, run id, namespace and tenant may look like, and how an id relates to the
chain it belongs to: hops are `<root>~<n>`, retries `<id>.retry`, and both live in the slot of their
root. Refuses braces, colons in workflow names, control characters, blanks and over-long text,
because all of them end up inside keys.
"""

from __future__ import annotations

import re

from pyrula.workflows.stores.errors import InvalidInputError

MAX_NAME = 128
MAX_RUN_ID = 256
MAX_OWNER = 256

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@=+,/\-]*")
_NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:\-]*")
_SUFFIX = re.compile(r"(?:~[0-9]+|\.retry)+\Z")


def check_workflow_name(name: str) -> str:
    """Return `name`, or raise `InvalidInputError` `invalid_workflow_name`."""
    return _check(name, _NAME, MAX_NAME, "workflow name", "letters, digits, and _ . -")


def check_namespace(namespace: str) -> str:
    """Return `namespace`, or raise `InvalidInputError` `invalid_namespace`."""
    return _check(namespace, _NAMESPACE, MAX_NAME, "namespace", "letters, digits, and _ . : -")


def check_run_id(run_id: str) -> str:
    """Return a run id that a user may choose, or raise `InvalidInputError` `invalid_run_id`.

    `~` and a final `.retry` are refused: the engine uses them for hops and retries.
    """
    _check(run_id, _RUN_ID, MAX_RUN_ID, "run id", "letters, digits, and _ . : @ = + , / -")
    if run_id.endswith(".retry"):
        raise InvalidInputError(
            f"expected a run id that does not end in .retry, found {run_id!r}; "
            "that ending names retries, choose another id",
            code="invalid_run_id",
        )
    return run_id


def check_owner(owner: str) -> str:
    """Return a tenant name, or raise `InvalidInputError` `invalid_owner`."""
    if not owner.strip() or len(owner) > MAX_OWNER or not owner.isprintable():
        raise InvalidInputError(
            f"expected an owner of 1 to {MAX_OWNER} printable characters, found {owner[:40]!r}",
            code="invalid_owner",
        )
    return owner


def chain_root(run_id: str) -> str:
    """The id that a chain was started with: `run_id` without hop and retry suffixes.

    >>> chain_root("order-7~12.retry")
    'order-7'
    """
    return _SUFFIX.sub("", run_id)


def _check(text: str, allowed: re.Pattern[str], most: int, what: str, letters: str) -> str:
    if len(text) <= most and allowed.fullmatch(text):
        return text
    shown = text if len(text) <= 40 else text[:40] + "…"
    raise InvalidInputError(
        f"expected a {what} of 1 to {most} characters ({letters}; first a letter, digit or _), "
        f"found {shown!r}",
        code="invalid_" + what.replace(" ", "_"),
    )
