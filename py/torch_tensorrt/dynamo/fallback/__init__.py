"""Fallback: run what TensorRT rejects in PyTorch, and record the reason at each node."""
