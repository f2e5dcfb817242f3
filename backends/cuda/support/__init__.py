"""Operator support check of ``CudaBackend`` by a dry run of its ``preprocess``."""
