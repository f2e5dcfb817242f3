"""Operator checks of lowering: preserved operators, Core ATen, host kernels, and errors that name nodes."""
