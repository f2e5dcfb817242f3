"""Patches to torch_tensorrt.dynamo.conversion."""
