"""What all loops of a worker share.

Owns identity, options, the store, the seams and the one switch that stops everything. Holds no
behaviour of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyrula.workflows.engine.registry import WorkflowDefinition
from pyrula.workflows.stores.base import Store
from pyrula.workflows.stores.seams import Seams
from pyrula.workflows.worker.options import WorkerOptions
from pyrula.workflows.worker.slots import Slots
from pyrula.workflows.worker.storeclock import StoreClock


@dataclass(kw_only=True)
class Core:
    """One worker's shared state; `draining` means: claim nothing more."""

    store: Store
    options: WorkerOptions
    definitions: Mapping[str, WorkflowDefinition]
    incarnation: str
    seams: Seams
    slots: Slots = field(init=False)
    store_clock: StoreClock = field(init=False)
    shard_count: int = field(init=False)
    draining: bool = False

    def __post_init__(self) -> None:
        self.slots = Slots(self.options.max_concurrent_runs)
        self.store_clock = StoreClock(self.seams.clock)
        self.shard_count = self.store.shard_count

    @property
    def lock_ttl_ms(self) -> int:
        """The lifetime of a run lock without renewal."""
        return int(self.options.lock_ttl * 1000)
