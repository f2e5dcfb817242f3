"""Compile with Inductor and Triton for a GPU that isn't there."""
