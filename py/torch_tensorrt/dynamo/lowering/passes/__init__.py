"""Patches to torch_tensorrt.dynamo.lowering.passes."""
