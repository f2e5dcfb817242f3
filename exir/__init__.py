"""Patches to executorch.exir."""
