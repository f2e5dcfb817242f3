"""Patches to torch_tensorrt.runtime."""
