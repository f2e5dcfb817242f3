"""Copies of graphs, their names and fake tensors, and graphs made ``ExportedProgram``."""
