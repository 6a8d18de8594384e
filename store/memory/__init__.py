"""The store in memory: the plain-Python specification of every transition.

Owns what each transition means. `records` is the state, `owning`, `recovering` and `runs` are the
transitions as plain functions on it, `server` keeps it all and delivers hints, `store` is the
`Store` that the floors above talk to. Other stores are compared with this one, so it is written to
be read; it refuses to be durable and forgets everything with the process.
"""

from pyrula.workflows.stores.memory.server import MemoryServer
from pyrula.workflows.stores.memory.store import MemoryStore

__all__ = ["MemoryServer", "MemoryStore"]
