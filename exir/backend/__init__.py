"""``executorch.exir.backend``: lower partitions to backends."""
