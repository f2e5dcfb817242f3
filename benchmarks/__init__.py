"""Ours beside upstream's, in one process; see ``python -m benchmarks``."""
