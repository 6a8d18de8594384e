"""The parent process that watches a pool of workers from outside, and its vocabulary.

Owns forking, watching, burying and replacing children, the control socket and the embedded server.
Refuses user code, a store connection, an event loop and threads: a bad workflow module or a hung
store can't take it down. Imports nothing else of ours; the child's entry point is a string that is
imported after the fork. Of this package a worker uses only `page`, `link` and `certificate`.
"""
