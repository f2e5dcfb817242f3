"""Patches to torch_tensorrt.dynamo.runtime.meta_ops."""
