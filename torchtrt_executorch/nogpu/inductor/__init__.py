"""Compile with Inductor and Triton for a GPU description, without a device."""
