"""Patches to executorch.backends.xnnpack.partition."""
