"""Patches to executorch.backends.xnnpack."""
