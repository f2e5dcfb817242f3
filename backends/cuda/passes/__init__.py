"""Patches to executorch.backends.cuda.passes."""
