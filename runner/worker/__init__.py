"""The worker: one process, one event loop, many runs.

Owns claiming, attempts, renewal, timers, orphan recovery and the ordered shutdown, one background
loop a file. Refuses to know how runs are kept (the store does) and what a body may do (the engine
does). `worker.WorkflowWorker` is the public face, `child.main` the entry under a supervisor.

A run's way through: a claim loop takes it from a shard (`claiming`), `attempts` fetches the rest of
its journal and runs an `Activation`, `renewal` keeps its lock from a thread of its own; the attempt
parks it, ends it, or gives it back.
"""
