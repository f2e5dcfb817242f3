"""What compilation for ExecuTorch changes: routing, arguments, outputs, control flow, quantization."""
