"""Compilation for ExecuTorch: routing, arguments, outputs, control flow, quantization."""
