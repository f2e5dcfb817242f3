"""Quantized weights of CUDA delegates: packed into their bit width, and a Triton GEMV that reads them packed."""
