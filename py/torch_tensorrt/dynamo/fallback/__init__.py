"""What TensorRT rejects runs in PyTorch, and each node has the reason."""
