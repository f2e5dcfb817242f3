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

#: A module, the name of its cache, the index of a layer and its attribute; the module and the name of the buffer that has its tensor.
_Place = tuple[nn.Module, str, int, str, nn.Module, str]


@contextmanager
def caches_of_buffers(module: nn.Module) -> Iterator[None]:
    """Have the caches of a module read and write its buffers, whatever these are when it is called.

    Args:
        module: The one that is called, whose caches are attributes of it or of modules in it. A tensor of a
            cache's layer that is no buffer becomes one of the module that has the cache.
    """
    places = [*_places(module)]
    held: list[tuple[Any, str, torch.Tensor]] = []

    def bind(*called: Any) -> None:
        for holder, cache, index, attribute, owner, name in places:
            # torch.export replaces a cache that transformers' exporter has registered as a pytree by a copy.
            layer: Any = vars(holder)[cache].layers[index]
            held.append((layer, attribute, getattr(layer, attribute)))
            setattr(layer, attribute, getattr(owner, name))

    before = module.register_forward_pre_hook(bind)
    try:
        yield
    finally:
        before.remove()
        for layer, attribute, tensor in reversed(held):
            setattr(layer, attribute, tensor)


def _places(module: nn.Module) -> Iterator[_Place]:
    buffers = {
        id(tensor): (owner, name)
        for owner in module.modules()
        for name, tensor in owner._buffers.items()
    }
    for holder in module.modules():
        caches = {
            n: each for n, each in vars(holder).items() if isinstance(each, Cache)
        }
        for cache, index, layer in _layers(caches):
            for attribute, tensor in vars(layer).items():
                if not isinstance(tensor, torch.Tensor):
                    continue
                if id(tensor) not in buffers:
                    name = f"{cache}_{attribute}_{index}"
                    holder.register_buffer(name, tensor, persistent=False)
                    buffers[id(tensor)] = holder, name
                yield holder, cache, index, attribute, *buffers[id(tensor)]


def _layers(caches: dict[str, Cache]) -> Iterator[tuple[str, int, Any]]:
    for name, cache in caches.items():
        for index, layer in enumerate(cache.layers):
            yield name, index, layer
