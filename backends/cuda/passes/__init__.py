"""Patches to executorch.backends.cuda.triton."""
