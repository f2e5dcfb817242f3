"""Patches to torch_tensorrt.executorch."""
