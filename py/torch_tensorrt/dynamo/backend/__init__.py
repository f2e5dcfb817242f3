"""Patches to torch_tensorrt.dynamo.backend."""
