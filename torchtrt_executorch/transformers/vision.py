"""Export DINOv2: one method ``forward``, of an image."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch.export import ExportedProgram

from torchtrt_executorch.transformers.exportable import Method, WithMethods, noise


class Dinov2(WithMethods):
    """``forward``: an image (1, 3, size, size) to logits (1, classes)."""

    @cached_property
    def methods(self) -> dict[str, Method]:
        """Its only one."""
        config = self.module.config
        pixels = noise(self, 1, config.num_channels, *2 * (config.image_size,))
        return {"forward": Method(_Classifier(self.module), (pixels,))}

    def constants(self, programs: Mapping[str, ExportedProgram]) -> dict[str, Any]:
        """Return the size of an image, and the number of classes."""
        config = self.module.config
        return {"get_img_size": config.image_size, "get_num_classes": config.num_labels}


class _Classifier(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(pixel_values).logits
        return logits
