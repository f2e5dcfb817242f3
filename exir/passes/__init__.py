"""Patches to executorch.exir.passes."""
