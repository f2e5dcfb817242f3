"""Compile CUDA delegates on machines without a GPU: what edits of ExecuTorch's CUDA backend call."""
