"""Patches to executorch.backends.aoti."""
