"""The engine: what a workflow body may call, and how a journal is turned back into its state.

Owns replay, context, identity, steps and the registry. Refuses I/O and clocks: it reaches the world
only through the protocols in `env`, which a worker (or a test) implements.

A body's life here: `Activation.run` folds the journal (`replay`), calls the body with a `Context`,
serves every call that was recorded, journals every new one (`writer`), and ends in exactly one
`Outcome`: completed, failed, cancelled, parked, lost, store_lost, or stood_down.
"""
