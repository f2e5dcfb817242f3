"""Patches to executorch.backends.aoti.passes."""
