"""The builder of TensorRT engines: which one is installed, and its own process."""
