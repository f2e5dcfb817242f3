"""Trace a module whose static cache is in its buffers, without Dynamo.

``torch.export`` without Dynamo finds what a module writes to its buffers, which it replaces while it traces. A cache of
transformers' has the same tensors as attributes of its layers, where it doesn't look: they would be traced as constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache

#: A layer of a cache, an attribute of it, and the module and the name of the buffer that has the same tensor.
_Place = tuple[Any, str, nn.Module, str]


@contextmanager
def caches_of_buffers(module: nn.Module) -> Iterator[None]:
    """Have the caches of a module read and write its buffers, whatever these are when it is called.

    Args:
        module: The one that is called, whose caches are attributes of it or of modules in it. A tensor of a
            cache's layer that is no buffer becomes one of the module that has the cache.
    """
    places = [*_places(module)]

    def bind(*called: Any) -> None:
        for layer, attribute, owner, name in places:
            setattr(layer, attribute, getattr(owner, name))

    before = module.register_forward_pre_hook(bind)
    try:
        yield
    finally:
        before.remove()
        bind()


def _places(module: nn.Module) -> Iterator[_Place]:
    buffers = {
        id(tensor): (owner, name)
        for owner in module.modules()
        for name, tensor in owner._buffers.items()
    }
    for holder in module.modules():
        caches = [each for each in vars(holder).values() if isinstance(each, Cache)]
        for index, layer in enumerate(
            layer for each in caches for layer in each.layers
        ):
            for attribute, value in vars(layer).items():
                if not isinstance(value, torch.Tensor):
                    continue
                if id(value) not in buffers:
                    name = f"cache_{attribute}_{index}"
                    holder.register_buffer(name, value, persistent=False)
                    buffers[id(value)] = holder, name
                yield layer, attribute, *buffers[id(value)]
