"""The supervisor: forks worker processes, watches them from outside, and knows who was guilty.

`page`, `link`, `certificate` and `exits` are what a worker speaks to its parent and all that it
imports; everything else belongs to the parent, which has no event loop, no thread, no user code and
no connection to the store. Imports nothing else of ours.
"""
