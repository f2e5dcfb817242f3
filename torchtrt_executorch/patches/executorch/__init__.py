"""Patches to executorch, by upstream module name."""
