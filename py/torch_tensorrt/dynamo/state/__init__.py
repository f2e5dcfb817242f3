"""Mutable buffers and inputs of a program, while its graph is compiled into engines."""
