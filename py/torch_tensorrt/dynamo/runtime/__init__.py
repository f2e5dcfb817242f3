"""Patches to torch_tensorrt.dynamo.runtime."""
