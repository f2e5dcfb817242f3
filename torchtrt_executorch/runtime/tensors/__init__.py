"""Tensor values: layout, memory and devices."""
