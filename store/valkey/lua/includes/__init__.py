"""Pieces shared by the scripts, one Lua function a file; joined by `functions.py`."""
