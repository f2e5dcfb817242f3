"""Compile large graphs in less time, to the same code: what Inductor computes anew for each pair of nodes or constants."""
