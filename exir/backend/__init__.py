"""``executorch.exir.backend``: what hands partitions to backends."""
