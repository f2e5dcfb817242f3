"""Kernels of operators, and their calls."""
