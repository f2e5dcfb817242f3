"""Buffers of constants and the deferred writing of a program's bytes."""
