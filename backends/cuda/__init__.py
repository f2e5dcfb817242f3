"""``executorch.backends.cuda``: CUDA delegates, compiled with or without a GPU."""
