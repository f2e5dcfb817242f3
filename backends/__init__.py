"""Patches to executorch.backends."""
