"""Measures the stores next to their bare drivers: `python -m benchmarks`, or `make bench`."""
