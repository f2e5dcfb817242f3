"""Decompositions of operators that neither a backend nor ExecuTorch's kernels support."""
