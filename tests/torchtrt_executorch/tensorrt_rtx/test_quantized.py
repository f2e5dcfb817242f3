"""Explicit quantization in real networks: their arithmetic, layer by layer, and the bytes of a plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ...lowering import lower, operators, tensorrt_partitioner

pytestmark = pytest.mark.builds

quantization = pytest.importorskip("torchao.quantization")

X = torch.linspace(-2, 2, 64).reshape(8, 8)
Q = torch.arange(-32, 32, dtype=torch.int8).reshape(8, 8)
Q4 = (Q % 16 - 8).to(torch.int8)
SCALES = torch.linspace(0.1, 0.8, 8)
ZEROS = torch.tensor([3, -2, 0, 1, 5, -7, 2, 4])
BLOCKS = torch.linspace(0.1, 1.6, 16).reshape(8, 2)


def arrays(network: Any, given: np.ndarray, packed: Any) -> np.ndarray:
    """Return what a network of the layers that conversions are made of computes, in its own order.

    Args:
        network: Of one output.
        given: Its input.
        packed: By their names the constants that have two values to a byte.
    """
    import tensorrt as trt

    values = {network.get_input(i).name: given for i in range(network.num_inputs)}
    for i in range(network.num_layers):
        layer = network.get_layer(i)
        read = [
            values.get(layer.get_input(j).name)
            for j in range(layer.num_inputs)
            if layer.get_input(j) is not None
        ]
        if layer.type == trt.LayerType.CONSTANT:
            layer.__class__ = trt.IConstantLayer
            if layer.get_output(0).dtype == trt.DataType.INT4:
                held = packed[layer.name].numpy()
                result = np.stack([held << 4, held], 1).view(np.int8) >> 4
            else:
                result = np.array(layer.weights)
            result = result.reshape(tuple(layer.shape))
        elif layer.type in (trt.LayerType.QUANTIZE, trt.LayerType.DEQUANTIZE):
            kind = layer.type.name.capitalize()
            layer.__class__ = getattr(trt, f"I{kind}Layer")
            value, scale = read
            if scale.ndim == 1:
                shape = [1] * value.ndim
                shape[layer.axis] = -1
                scale = scale.reshape(shape)
            for dim, (n, count) in enumerate(
                zip(value.shape, scale.shape, strict=False)
            ):
                if count not in (1, n):
                    scale = scale.repeat(n // count, dim)
            if layer.type == trt.LayerType.QUANTIZE:
                result = np.clip(np.round(value / scale), -128, 127).astype(np.int8)
            else:
                result = value.astype(np.float32) * scale
        elif layer.type == trt.LayerType.ELEMENTWISE:
            layer.__class__ = trt.IElementWiseLayer
            operation = {"SUM": np.add, "SUB": np.subtract}[layer.op.name]
            result = operation(*read)
        elif layer.type == trt.LayerType.SLICE:  # of stride 0: one number for all
            result = np.broadcast_to(read[0], tuple(layer.get_output(0).shape))
        else:
            assert layer.type in (trt.LayerType.SHUFFLE, trt.LayerType.CAST)
            result = read[0].reshape(tuple(layer.get_output(0).shape))
        values[layer.get_output(0).name] = result
    return values[network.get_output(0).name]


def _decomposed(name: str) -> Any:
    import torch.ao.quantization.fx._decomposed

    return getattr(torch.ops.quantized_decomposed, name).default


RANGE = (-128, 127, torch.int8)
CONVERSIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "activation": ("quantize_per_tensor", (X, 0.03, 0, *RANGE)),
    "activation, shifted": ("quantize_per_tensor", (X, 0.03, -17, *RANGE)),
    "tensor": ("dequantize_per_tensor", (Q, 0.5, 0, *RANGE)),
    "tensor, shifted": ("dequantize_per_tensor", (Q, 0.5, -128, *RANGE)),
    "rows": ("dequantize_per_channel", (Q, SCALES, ZEROS * 0, 0, *RANGE)),
    "columns, shifted": ("dequantize_per_channel", (Q, SCALES, ZEROS, 1, *RANGE)),
    "blocks": ("affine", (Q, [1, 4], BLOCKS, None, torch.int8, -8, 7)),
    "blocks, shifted": ("affine", (Q, [1, 4], BLOCKS, ZEROS.repeat(2).reshape(8, 2), torch.int8, -8, 7)),
    "a cast": ("cast", (Q,)),
    "four bits": ("affine", (Q4, [1, 4], BLOCKS, None, torch.int8, -8, 7)),
    "four bits, rows": ("dequantize_per_channel", (Q4, SCALES, ZEROS, 0, *RANGE)),
    "four bits, shifted": ("affine", (Q4 + 8, [1, 4], BLOCKS, ZEROS.repeat(2).reshape(8, 2), torch.int8, 0, 15)),
}  # fmt: skip


@pytest.mark.parametrize("case", CONVERSIONS)
def test_layers_compute_what_the_operator_does(case: str) -> None:
    import tensorrt as trt
    from torch_tensorrt.dynamo.conversion import _quantized_converters as converters
    from torch_tensorrt.dynamo.conversion._ConversionContext import ConversionContext

    (name, args), kwargs = CONVERSIONS[case], dict[str, Any]()
    if name == "affine":
        operator = torch.ops.torchao.dequantize_affine.default
    elif name == "cast":
        operator, kwargs = torch.ops.aten._to_copy.default, {"dtype": torch.float32}
    else:
        operator = _decomposed(name)
    wanted = operator(*args, **kwargs)
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network(0)
    given = args[0]
    if name == "quantize_per_tensor":
        given = network.add_input("x", trt.float32, tuple(X.shape))
    convert = converters.CONVERTERS[str(operator)]
    ctx = ConversionContext(network)
    network.mark_output(convert(ctx, operator, (given, *args[1:]), kwargs, "node"))
    held = [network.get_layer(i).get_output(0).dtype for i in range(network.num_layers)]
    assert (trt.DataType.INT4 in held) == case.startswith("four bits")
    found = torch.from_numpy(arrays(network, X.numpy(), ctx.weight_refit_map))
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "group", [None, 32, 128], ids=["int8", "int4, 32", "int4, 128"]
)
def test_a_plan_has_weights_in_their_bits(group: int | None) -> None:
    if group is None:
        config, nbytes = quantization.Int8WeightOnlyConfig(), 1.0
    else:
        groups = quantization.granularity.PerGroup(group)
        config = quantization.IntxWeightOnlyConfig(torch.int4, groups)
        nbytes = 0.5 + 2 / group
    layers = nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 256)
    model = nn.Sequential(*layers).bfloat16().eval()
    quantization.quantize_(model, config)
    row = torch.ones(4, 256, dtype=torch.bfloat16)
    edge = lower(model, (row,), tensorrt_partitioner())
    assert (
        operators(edge.exported_program().graph_module)["executorch_call_delegate"] == 1
    )
    # An engine has some 560 KB of its own.
    weights = 2 * 256 * 4096 * nbytes
    assert weights < len(edge.to_executorch().buffer) < weights + 700_000
