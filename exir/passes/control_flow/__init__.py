"""Passes over branches and loop bodies."""
