"""Every key that the store writes: one schema table, and the builders that spell the keys.

Owns the names of keys, channels and the fields of a run's hash. Everything that one transition
touches shares one hash tag, `<ns>:{<workflow>.<shard>}:`, so a cluster keeps it together and a
failover rolls it back together. Scripts get that prefix as KEYS[1] and append a kind of the table.

Refuses keys outside the table: a checker in the tests holds the server's key space against it.

Fields of `run:<id>`: `st` status, `tok` token (empty without an owner), `last`/`lastop` the last
token and how it ended, `ep` epoch, `inc` owning incarnation, `flags`, `sc` FIFO score, `dg` digest,
`own` tenant, `ct`/`ut` created and updated, `due`, `len0` journal length at claim, `att` attempts
in a row without progress, `lost` losses in a row, `trimmed`, `waiters` members to tell about the
end, `cop`/`cst` the last cancel's operation id and answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pyrula.workflows.stores.names import chain_root

KeyType = Literal["string", "hash", "list", "set", "zset"]
LAYOUT = "1"


@dataclass(frozen=True, kw_only=True)
class KeySpec:
    """One row: a pattern within the namespace, its type, how long it lives and who writes it.

    `ttl` is `None` for keys that stay, `"always"` for those that never lack one, and
    `"when finished"` for the keys of a run.
    """

    pattern: str
    type: KeyType
    ttl: Literal["always", "when finished"] | None
    writer: str

    def matches(self, key: str) -> bool:
        """Whether `key`, without its namespace, is spelled like this row."""
        parts = re.split(r"<[^>]+>", self.pattern)
        return re.fullmatch(".+".join(map(re.escape, parts)), key) is not None


_SHARD = "{<workflow>.<shard>}:"

SCHEMA: tuple[KeySpec, ...] = (
    KeySpec(pattern="{store}:id", type="string", ttl=None, writer="open"),
    KeySpec(pattern="{names}", type="set", ttl=None, writer="register"),
    KeySpec(pattern="{<workflow>}:registry", type="hash", ttl=None, writer="register"),
    KeySpec(pattern="{id.<root>}", type="set", ttl=None, writer="submit, sweep"),
    KeySpec(pattern="{key.<id>}", type="hash", ttl="always", writer="reserve_key"),
    KeySpec(pattern=_SHARD + "meta", type="hash", ttl=None, writer="register"),
    KeySpec(pattern=_SHARD + "queue", type="zset", ttl=None, writer="all that make claimable"),
    KeySpec(pattern=_SHARD + "seq", type="string", ttl=None, writer="all that make claimable"),
    KeySpec(pattern=_SHARD + "running", type="zset", ttl=None, writer="claim, renew, all that end"),
    KeySpec(pattern=_SHARD + "held:<inc>", type="set", ttl=None, writer="claim, all that end"),
    KeySpec(pattern=_SHARD + "suspect", type="zset", ttl=None, writer="scan, renew"),
    KeySpec(pattern=_SHARD + "timers", type="zset", ttl=None, writer="park, submit, requeue, fire"),
    KeySpec(pattern=_SHARD + "hungry", type="zset", ttl=None, writer="claim, all that wake"),
    KeySpec(pattern=_SHARD + "tomb", type="zset", ttl=None, writer="settle"),
    KeySpec(pattern=_SHARD + "runs", type="zset", ttl=None, writer="submit, sweep"),
    KeySpec(pattern=_SHARD + "done", type="zset", ttl=None, writer="finish, sweep"),
    KeySpec(pattern=_SHARD + "op:<id>", type="string", ttl="always", writer="claim, scans"),
    KeySpec(pattern=_SHARD + "run:<id>", type="hash", ttl="when finished", writer="transitions"),
    KeySpec(pattern=_SHARD + "ev:<id>", type="list", ttl="when finished", writer="owner, scripts"),
)


@dataclass(frozen=True)
class Keys:
    """The keys of one namespace.

    >>> Keys("default").shard("order", 7)
    'default:{order.7}:'
    """

    namespace: str

    def shard(self, workflow: str, shard: int) -> str:
        """The prefix of everything in a shard."""
        return f"{self.namespace}:{{{workflow}.{shard}}}:"

    def registry(self, workflow: str) -> str:
        """What a workflow name is recorded with."""
        return f"{self.namespace}:{{{workflow}}}:registry"

    def names(self) -> str:
        """All registered names."""
        return f"{self.namespace}:{{names}}"

    def store_id(self) -> str:
        """The mark that tells this store from a fresh one."""
        return f"{self.namespace}:{{store}}:id"

    def index(self, run_id: str) -> str:
        """The index line of a chain: the set of `<workflow>:<shard>` where it has runs."""
        return f"{self.namespace}:{{id.{chain_root(run_id)}}}"

    def idempotency(self, key_id: str) -> str:
        """What an idempotency key is tied to."""
        return f"{self.namespace}:{{key.{key_id}}}"

    def channel(self, member: str) -> str:
        """Where a member's hints are published."""
        return f"{self.namespace}:hint:{member}"


def run_keys(shard_prefix: str, run_id: str) -> tuple[str, str]:
    """A run's hash and its journal."""
    return f"{shard_prefix}run:{run_id}", f"{shard_prefix}ev:{run_id}"
