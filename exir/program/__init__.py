"""Patches to executorch.exir.program."""
