"""The doors: partitioners, with or without a quantization before them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from benchmarks.models._model import Network


@dataclass(frozen=True)
class Door:
    """One way of lowering.

    Attributes:
        partitioners: Makes them.
        quantize: Makes a quantized program of a network, its model and its calls' inputs.
        tolerance: Largest difference from the program that is lowered, beside the largest value.
    """

    partitioners: Callable[[], list[Any]]
    quantize: Callable[[Network, nn.Module, list[Any]], ExportedProgram] | None = None
    tolerance: float = 1e-3


def _tensorrt() -> Any:
    from torch_tensorrt.executorch import TensorRTPartitioner

    return TensorRTPartitioner(
        compile_settings={"executorch_allocator_routing": "node"}
    )


def _xnnpack() -> Any:
    from executorch.backends.xnnpack.partition import xnnpack_partitioner

    return xnnpack_partitioner.XnnpackPartitioner()


def _cuda() -> Any:
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner

    return CudaPartitioner([CudaBackend.generate_method_name_compile_spec("forward")])


def _by_pt2e(network: Network, model: nn.Module, calls: list[Any]) -> ExportedProgram:
    """Quantize weights and activations, calibrated by the calls and by what the truth is asked of."""
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack
    from torchao.quantization.pt2e import quantize_pt2e as pt2e

    config = xnnpack.get_symmetric_quantization_config(is_per_channel=True)
    quantizer = xnnpack.XNNPACKQuantizer().set_global(config)
    prepared = pt2e.prepare_pt2e(network.export(model, calls[0]).module(), quantizer)
    for inputs in calls:
        prepared(*inputs)
    if network.truth is not None:
        network.truth(prepared)
    return network.export(pt2e.convert_pt2e(prepared), calls[0])


def _by_torchao(
    network: Network, model: nn.Module, calls: list[Any]
) -> ExportedProgram:
    """Quantize the weights of linears."""
    from torchao.quantization import Int8WeightOnlyConfig

    return _with_linears(Int8WeightOnlyConfig(), network, model, calls)


def _by_torchao_dynamically(
    network: Network, model: nn.Module, calls: list[Any]
) -> ExportedProgram:
    """Quantize the weights of linears, and their inputs row by row in each call: XNNPACK has no others of torchao's."""
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, PerAxis

    config = Int8DynamicActivationIntxWeightConfig(torch.int8, PerAxis(0))
    return _with_linears(config, network, model, calls)


def _with_linears(
    config: Any, network: Network, model: nn.Module, calls: list[Any]
) -> ExportedProgram:
    from torchao.quantization import quantize_

    quantized = copy.deepcopy(model)
    quantize_(quantized, config)
    return network.export(quantized, calls[0])


#: XNNPACK takes what TensorRT leaves; but of what PT2E quantizes, it would take all. Its kernels round
#: to int8 by themselves, a step off here and there.
DOORS: Mapping[str, Door] = {
    "tensorrt": Door(lambda: [_tensorrt(), _xnnpack()]),
    "cuda": Door(lambda: [_cuda()]),
    "xnnpack": Door(lambda: [_xnnpack()]),
    "tensorrt-pt2e": Door(lambda: [_tensorrt()], _by_pt2e),
    "xnnpack-pt2e": Door(lambda: [_xnnpack()], _by_pt2e, tolerance=0.1),
    "cuda-int8": Door(lambda: [_cuda()], _by_torchao),
    "xnnpack-int8": Door(lambda: [_xnnpack()], _by_torchao_dynamically, tolerance=0.1),
    "tensorrt-int8": Door(lambda: [_tensorrt(), _xnnpack()], _by_torchao),
}
#: Those that every network goes through.
PLAIN = tuple(name for name, door in DOORS.items() if door.quantize is None)


def warm() -> None:
    """Import what all processes need, once, before they are forked."""
    import executorch.runtime  # noqa: F401
    import torch_tensorrt.executorch  # noqa: F401

    import torchtrt_executorch.runtime  # noqa: F401
    from benchmarks._zoo_backends import warm as warm_cuda

    torch.set_num_threads(1)
    warm_cuda()
