"""The Lua scripts; read as package data, never imported."""
