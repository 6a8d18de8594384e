"""Who may claim what: shard hashing now; lease term, balance and tenant fairness build on it.

Talks to the store protocol only; never to a server, a process or a clock of its own.
"""
