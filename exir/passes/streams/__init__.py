"""Delegates on CUDA streams: which run in order, which copies that takes, and how long their tensors live."""
