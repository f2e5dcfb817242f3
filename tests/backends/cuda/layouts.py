"""Tensors in every layout that a view may have: what a kernel that takes a pointer and sizes has to see."""

from __future__ import annotations

import random

import torch

#: Layouts that have the values of what they are made of, and one that repeats some of them.
LAYOUTS = ("contiguous", "transposed", "sliced", "offset")
EXPANDED = "expanded"


def relaid(tensor: torch.Tensor, layout: str, choose: random.Random) -> torch.Tensor:
    """Return ``tensor`` in ``layout``; expanded it has the values of one index along a dimension."""
    if layout == "transposed":
        dims = list(range(tensor.ndim))
        choose.shuffle(dims)
        if dims == sorted(dims):
            dims.reverse()
        back = [dims.index(dim) for dim in range(tensor.ndim)]
        return tensor.permute(dims).contiguous().permute(back)
    if layout == "sliced":
        steps = [choose.choice([1, 2, 3]) for _ in tensor.shape]
        steps[-1] = max(steps[-1], 2)
        sizes = [size * step for size, step in zip(tensor.shape, steps, strict=True)]
        view = tensor.new_zeros(sizes)[tuple(slice(None, None, step) for step in steps)]
        return view.copy_(tensor)
    if layout == "offset":
        begin = choose.choice([1, 3, 16])
        whole = tensor.new_zeros(tensor.numel() + begin + 1)
        return whole[begin:-1].view(tensor.shape).copy_(tensor)
    if layout == EXPANDED:
        dim = choose.randrange(tensor.ndim)
        return tensor.narrow(dim, 0, 1).expand(tensor.shape)
    return tensor.contiguous()
