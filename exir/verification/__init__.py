"""Patches to executorch.exir.verification."""
