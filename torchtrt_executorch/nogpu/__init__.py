"""Compile CUDA delegates on machines without a GPU: the functions that edits of ExecuTorch's CUDA backend call."""
