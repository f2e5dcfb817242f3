"""Decompositions of operators that neither backends nor ExecuTorch's kernels have."""
