"""Tile configurations of Inductor's kernels, chosen without running one: a cost model over recorded autotuning results."""
