"""Benchmarks: what docs/benchmarks.md publishes. Run with `make bench`."""
