"""Patches to executorch.exir.emit."""
