"""Rewrite operators into others that XNNPACK supports, so that they don't split a delegate."""
