"""Models whose weights and activations are quantized by PT2E for XNNPACK."""

from __future__ import annotations

from typing import Any

import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from torch import Tensor
from torch.export import ExportedProgram
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


def by_pt2e(
    model: torch.nn.Module,
    inputs: tuple[Tensor, ...],
    shapes: Any = None,
    calibration: tuple[Tensor, ...] | None = None,
    **config: bool,
) -> ExportedProgram:
    """Return a program of int8, calibrated by its inputs unless others are given.

    Args:
        config: Of ``get_symmetric_quantization_config``.
    """
    quantizer = XNNPACKQuantizer().set_global(
        get_symmetric_quantization_config(**config)
    )
    program = torch.export.export(model, inputs, dynamic_shapes=shapes)
    prepared = prepare_pt2e(program.module(), quantizer)
    prepared(*(calibration or inputs))
    return torch.export.export(convert_pt2e(prepared), inputs, dynamic_shapes=shapes)
