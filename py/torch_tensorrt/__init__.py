"""Patches to torch_tensorrt, by upstream module name."""
