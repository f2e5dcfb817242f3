"""Quantized weights of CUDA delegates: packed in as many bits as they have, and a Triton GEMV that reads them so."""
