"""Profiling: times by instruction, statistics of calls, and ETDumps."""
