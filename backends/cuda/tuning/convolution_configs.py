"""Tile configurations of convolutions, in addition to Inductor's own.

Inductor's are of 64 rows and 64 channels at least, and most have eight warps, of which a window larger than 1 gets four
(triton-lang/triton#1254). The convolutions of a ResNet by one image have fewer such tiles than a GPU has multiprocessors.
Over 96 convolutions on an H200 the fastest of Inductor's takes 1.21 times as long as the fastest of these and
Inductor's, and up to 2.2 times (Triton 3.8; float16 and TF32).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from executorch.backends.cuda.tuning.cost_model import Tile
from executorch.backends.cuda.tuning.float32_precision import CAPABILITY

#: The tiles that improve the fastest measured time most, in that order. None has more than four warps.
TILES = (
    Tile(64, 32, 64, 5, 4),
    Tile(64, 32, 128, 4, 4),
    Tile(32, 32, 64, 5, 4),
    Tile(64, 64, 64, 5, 4),
    Tile(32, 64, 128, 4, 4),
    Tile(64, 64, 64, 3, 4),
    Tile(32, 32, 128, 5, 4),
    Tile(128, 128, 32, 4, 4),
    Tile(128, 128, 64, 4, 4),
    Tile(64, 256, 64, 3, 4),
    Tile(64, 64, 64, 4, 4),
)


def overrides(capability: tuple[int, int]) -> dict[str, Callable[..., Any]]:
    """Return the override that adds them to Inductor's; none where tensor cores have no asynchronous loads.

    Args:
        capability: Compute capability of the GPU, or the least of several.
    """
    if capability < CAPABILITY:
        return {}
    from torch._inductor.choices import InductorChoices

    own = InductorChoices.get_conv_configs

    @functools.wraps(own)
    def with_smaller_tiles(self: Any, *args: Any, **kwargs: Any) -> Any:
        offer = own(self, *args, **kwargs)
        configs = offer.keywords["configs"]
        new = type(configs[0])
        smaller = [new(*tile) for tile in TILES]
        return functools.partial(offer, configs=[*configs, *smaller])

    return {
        "torch._inductor.choices:InductorChoices.get_conv_configs": with_smaller_tiles
    }
