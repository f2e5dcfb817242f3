"""Converters of explicit quantization: quantize and dequantize operators of PT2E and torchao.

Upstream only has converters of modelopt's operators, which quantize and dequantize in one. TensorRT's
layers have scales and no zero points: those are added before quantizing, and subtracted after dequantizing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorrt as trt
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from torch_tensorrt._enums import dtype
from torch_tensorrt._features import ENABLED_FEATURES
from torch_tensorrt.dynamo.conversion import impl
from torch_tensorrt.dynamo.conversion._ConverterRegistry import (
    ConverterPriority,
    dynamo_tensorrt_converter,
)
from torch_tensorrt.dynamo.conversion.converter_utils import (
    SourceIR,
    get_trt_tensor,
    set_layer_name,
)

KEPT = "torch_tensorrt.kept_quantized"
"""In the metadata of a node that converts to or from quantized values, and isn't folded."""


@functools.cache
def register(operator: Any) -> None:
    """Register our converter of ``operator``, if there is one, for nodes that stay quantized."""
    if (converter := CONVERTERS.get(str(operator))) is not None:
        dynamo_tensorrt_converter(
            operator,
            capability_validator=_can_convert,
            priority=ConverterPriority.HIGH,
            supports_dynamic_shapes=True,
        )(converter)


def _can_convert(node: Node, settings: Any = None) -> bool:
    """Whether the values are of eight bits, and the scales known."""
    arguments = _named(node.target, node.args, node.kwargs)
    scale, zero, _ = _scales(arguments)
    dtype = arguments.get("dtype")
    if not _quantizes(node.target):
        dtype = arguments["self" if "self" in arguments else "input"].meta["val"].dtype
    elif (arguments["quant_min"], arguments["quant_max"]) != (-128, 127):
        return False
    constant = (not isinstance(n, Node) or n.op == "get_attr" for n in (scale, zero))
    return KEPT in node.meta and dtype == torch.int8 and all(constant)


def _quantizes(operator: Any) -> bool:
    return "quantized_decomposed.quantize" in str(operator)


def _named(operator: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names that the operator's schema has for them."""
    parameters = operator._schema.arguments
    named = {p.name: p.default_value for p in parameters if p.has_default_value()}
    return {
        **named,
        **{p.name: a for p, a in zip(parameters, args, strict=False)},
        **kwargs,
    }


def _scales(arguments: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return scale, zero point and the type of the dequantized values."""
    scale = arguments.get("scales", arguments.get("scale", 1.0))
    zero = arguments.get("zero_points", arguments.get("zero_point"))
    names = (
        ["dtype"] if "self" in arguments else ["out_dtype", "output_dtype"]
    )  # a cast
    asked = (arguments.get(name) for name in names)  # by default it is a number
    dtypes = (value for value in asked if isinstance(value, torch.dtype))
    return scale, zero, next(dtypes, torch.float32)


def _quantize(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    arguments = _named(target, args, kwargs)
    value = get_trt_tensor(ctx, arguments["input"], f"{name}_input")
    shift = arguments["zero_point"] * arguments["scale"]
    if shift:
        value = impl.elementwise.add(
            ctx, target, SourceIR.ATEN, f"{name}_shift", value, shift
        )
    scale = get_trt_tensor(ctx, torch.tensor(arguments["scale"]), f"{name}_scale")
    layer = ctx.net.add_quantize(value, scale, trt.DataType.INT8)
    set_layer_name(layer, target, name, SourceIR.ATEN)
    return layer.get_output(0)


def _dequantize(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    arguments = _named(target, args, kwargs)
    value = arguments["self" if "self" in arguments else "input"]
    shape, values = tuple(value.shape), value
    scale, zero, float_dtype = _scales(arguments)
    scale = torch.as_tensor(scale, dtype=torch.float32)
    zero = torch.zeros(()) if zero is None else torch.as_tensor(zero).float()
    quant_min = _quant_min_of_four_bits(values)
    # TensorRT-RTX dequantizes four bits only by scales of the output's type.
    if quant_min is not None and scale.to(float_dtype).float().equal(scale):
        value, zero = (
            _in_four_bits(ctx, values - quant_min, f"{name}_input"),
            zero - quant_min,
        )
        held_scale = scale.to(float_dtype)
    else:
        value = get_trt_tensor(ctx, values, f"{name}_input")
        held_scale = scale
    grid = _grid(shape, arguments, scale)
    fine = [i for i, count in enumerate(grid) if count > 1]
    shift = zero.expand(scale.shape).reshape(grid) * scale.reshape(grid)
    by_axis = len(fine) == 1 and grid[fine[0]] == shape[fine[0]]
    held_scale = held_scale.reshape(() if not fine else (-1,) if by_axis else grid)
    layer = ctx.net.add_dequantize(
        value,
        get_trt_tensor(ctx, held_scale, f"{name}_scale"),
        dtype._from(float_dtype).to(trt.DataType),
    )
    if by_axis:
        layer.axis = fine[0]
    set_layer_name(layer, target, name, SourceIR.ATEN)
    dequantized = layer.get_output(0)
    if not shift.any():
        return dequantized

    def reshaped(to: tuple[int, ...], what: str) -> Any:
        return impl.shuffle.reshape(
            ctx, target, SourceIR.ATEN, f"{name}_{what}", dequantized, to
        )

    blocks = [n // count for n, count in zip(shape, grid, strict=True)]
    if not fine or by_axis:
        shift = shift.reshape(() if not fine else grid)
    else:  # a block of values has a number of its own
        pairs = zip(grid, blocks, strict=True)
        dequantized = reshaped(tuple(n for pair in pairs for n in pair), "blocks")
        shift = shift.reshape(tuple(n for count in grid for n in (count, 1)))
    dequantized = impl.elementwise.sub(
        ctx, target, SourceIR.ATEN, f"{name}_shift", dequantized, shift.to(float_dtype)
    )
    return dequantized if not fine or by_axis else reshaped(shape, "whole")


def _quant_min_of_four_bits(weight: Any) -> int | None:
    """Return the offset to subtract from a weight for values of -8 to 7; None if no offset suffices.

    Of values in four bits TensorRT-RTX takes matrices, of which a row is of whole bytes, with any scales.
    """
    constant = isinstance(weight, torch.Tensor) and not isinstance(weight, FakeTensor)
    if not constant or not ENABLED_FEATURES.tensorrt_rtx:
        return None
    if weight.dim() != 2 or not weight.numel() or weight.shape[1] % 2:
        return None
    quant_min, most = (int(extreme) for extreme in weight.aminmax())
    if quant_min >= -8 and most <= 7:
        return 0
    return quant_min + 8 if most - quant_min <= 15 else None


def _in_four_bits(ctx: Any, values: torch.Tensor, name: str) -> Any:
    """Return a constant of ``values``, two to a byte, the first in its lower bits."""
    low, high = (values.to(torch.int16) & 15).to(torch.uint8).view(-1, 2).unbind(1)
    packed = low | high << 4
    ctx.record_weight(name, packed)  # which has it live until the engine is built
    weights = trt.Weights(trt.DataType.INT4, packed.data_ptr(), values.numel())
    constant = ctx.net.add_constant(tuple(values.shape), weights)
    constant.name = name
    return constant.get_output(0)


def _grid(
    shape: tuple[int, ...], arguments: Mapping[str, Any], scale: torch.Tensor
) -> tuple[int, ...]:
    """Return how many scales there are along each dimension."""
    if (blocks := arguments.get("block_size")) is not None:
        return tuple(n // block for n, block in zip(shape, blocks, strict=True))
    axis = arguments.get("axis", 0) % max(len(shape), 1)
    along = math.prod(scale.shape)
    return tuple(along if i == axis else 1 for i in range(len(shape)))


CONVERTERS: Mapping[str, Callable[..., Any]] = {
    "quantized_decomposed.quantize_per_tensor.default": _quantize,
    "quantized_decomposed.dequantize_per_tensor.default": _dequantize,
    "quantized_decomposed.dequantize_per_channel.default": _dequantize,
    "torchao.dequantize_affine.default": _dequantize,
    "aten._to_copy.default": _dequantize,
}
