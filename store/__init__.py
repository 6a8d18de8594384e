"""What is kept: events, errors, seams, the Store protocol and the stores behind it.

A leaf of the house: it imports nothing of ours from above. Import from the submodules; this module
loads none of them, so that a process pays only for the store it uses.
"""
