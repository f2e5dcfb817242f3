"""A static KV cache of transformers' in int8, with a scale for each token of each head.

Half of bfloat16's bytes. CUDA delegates read it as it is in the attention of one token
(:mod:`executorch.backends.cuda.triton._decode_attention`); elsewhere it is dequantized first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import StaticLayer

_LARGEST = 127


class Int8Layer(StaticLayer):  # type: ignore[no-untyped-call]
    """Keys and values of a layer, (1, heads, length, width), in int8.

    Attributes:
        key_scales: (1, heads, length, 1), of the model's type, as are ``value_scales``.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, layer: Any) -> None:
        super().__init__(layer.max_cache_len)
        self.lazy_initialization(layer.keys, layer.values)
        self.cumulative_length = layer.cumulative_length  # which is a buffer already
        self.key_scales = torch.zeros_like(self.keys[..., :1])
        self.value_scales = torch.zeros_like(self.values[..., :1])
        self.keys, self.values = self.keys.to(torch.int8), self.values.to(torch.int8)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write (1, heads, n, width) behind what was written, and return all that the cache has room for."""
        tokens = key_states.shape[-2]
        places = torch.arange(tokens, device=self.device) + self.cumulative_length
        self.cumulative_length.add_(tokens)
        return (
            _written(self.keys, self.key_scales, places, key_states),
            _written(self.values, self.value_scales, places, value_states),
        )


def _written(stored: Tensor, scales: Tensor, places: Tensor, states: Tensor) -> Tensor:
    largest = states.abs().amax(-1, keepdim=True)
    # Rounded to its type first, and 0 for nothing but zeros, which would divide by it.
    scale = (largest / _LARGEST).clamp_min(torch.finfo(states.dtype).tiny)
    values = (states / scale).round().clamp(-_LARGEST, _LARGEST)
    stored.index_copy_(2, places, values.to(torch.int8))
    scales.index_copy_(2, places, scale)
    return stored.to(states.dtype) * scales


def use_int8_cache(module: nn.Module) -> None:
    """Replace the static cache of transformers' exportable module by one in int8, in place.

    Args:
        module: ``TorchExportableModuleWithStaticCache``, before it is exported. Its buffers ``key_cache_0``, ...
            become int8, and ``key_scale_0``, ... come beside them.
    """
    cache: Any = module.static_cache
    for index, layer in enumerate(cache.layers):
        if not layer.max_cache_len:  # it reads another layer's
            continue
        layer_cache = cache.layers[index] = Int8Layer(layer)
        for name, tensor in {
            "key_cache": layer_cache.keys,
            "value_cache": layer_cache.values,
            "key_scale": layer_cache.key_scales,
            "value_scale": layer_cache.value_scales,
        }.items():
            module.register_buffer(f"{name}_{index}", tensor, persistent=False)
