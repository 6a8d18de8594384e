"""Measures and long counts: `make bench`, `make soak`. Not shipped, not run by the tests."""
