"""Benchmarks and soak tests: commands that measure, never tests that pass or fail by a clock."""
