"""Replace matmuls of 16-bit values by a Triton kernel whose operands the TMA loads, where that is faster than Inductor's template.

Only for GPUs of compute capability 9.0 that are described, as its tiles were measured on one: beside one that is there,
upstream times what it chooses from. A gate and what it is multiplied with become two launches, the second of which computes the activation.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from executorch.backends.cuda._edge_calls import Writer, aten, is_call, named
from executorch.backends.cuda.quantized.fuse_gemvs import is_aligned
from executorch.backends.cuda.quantized.gemv_neighbors import (
    base_of,
    match_added,
    match_gate,
)
from executorch.backends.cuda.quantized.packed_weights import match_quantized_weight
from executorch.backends.cuda.tuning.cost_model import Matmul, cost, fastest, row_counts
from executorch.backends.cuda.tuning.gpu_properties import GpuProperties
from torch.fx import Graph, Node

_MATMULS = ("aten.mm", "aten.linear")
_DTYPES = (torch.float16, torch.bfloat16)
#: The capability that tiles were measured on.
_CAPABILITY = (9, 0)
#: And the platform that its host code was compiled and run on.
_PLATFORM = "linux-x86_64"
#: The fewest rows: a tile has 64.
_ROWS = 33
#: The least speedup by the models, and the largest slowdown at the most rows that a dynamic dimension has.
_GAIN, _LOSS = 1.05, 1.2

#: AOTInductor's host code encodes a descriptor with the whole block as its box. Of a block with wider rows than its swizzle, 128 bytes,
#: Triton copies several boxes of 128 bytes, as its own launcher describes them.
_BOX = "uint32_t contigDimSizeInByte = elemSize * blockSizeInt[0];\n"
NARROW = (
    "if (rank > 1 && contigDimSizeInByte > 128) blockSizeInt[0] = 128 / elemSize;\n"
)


@dataclass(frozen=True)
class _TmaMatmul:
    """A matmul that the kernel computes: its node, weight, and the number of its tile."""

    matmul: Node
    weight: Node
    tile: int

    @property
    def x(self) -> Node:
        """The left operand, which may have been replaced meanwhile."""
        x: Node = _operands(self.matmul)[0]
        return x


def overrides() -> dict[str, Callable[..., Any]]:
    """Return the overrides with which AOTInductor's host code encodes descriptors of blocks with wide rows, and compilers accept it."""
    from torch._inductor.codegen.cpp_wrapper_gpu import CppWrapperGpu
    from torch._inductor.codegen.cuda.device_op_overrides import CUDADeviceOpOverrides

    write: Any = getattr(CUDADeviceOpOverrides, "tma_descriptor_helpers", None)
    generate: Any = getattr(CppWrapperGpu, "_generate_stable_tma_descriptor", None)
    if write is None or generate is None:  # both or none
        return {}

    def tma_descriptor_helpers(self: Any) -> str:
        helpers: str = write(self)
        return helpers if NARROW in helpers else helpers.replace(_BOX, _BOX + NARROW)

    def generate_descriptor(self: Any, descriptor: Any) -> None:
        begin = len(self.lines)
        generate(self, descriptor)
        # With CUDA 13 the type has more than that by itself, and Clang accepts no less.
        self.lines[begin:] = [
            line.removeprefix("alignas(64) ") if isinstance(line, str) else line
            for line in self.lines[begin:]
        ]

    folder = "torch._inductor.codegen"
    owner = f"{folder}.cuda.device_op_overrides:CUDADeviceOpOverrides"
    wrapper = f"{folder}.cpp_wrapper_gpu:CppWrapperGpu"
    return {
        f"{owner}.tma_descriptor_helpers": tma_descriptor_helpers,
        f"{wrapper}._generate_stable_tma_descriptor": generate_descriptor,
    }


def use_tma(graph: Graph, weights: Mapping[Node, torch.Tensor]) -> None:
    """Replace matmuls by calls of ``executorch_cuda::tma_matmul``, in place.

    Args:
        graph: In the edge dialect.
        weights: Constant tensors by their placeholders.
    """
    gpu = target_gpu()
    if gpu is None:
        return
    matched = {
        node: match
        for node in graph.nodes
        if (match := _match(node, weights, gpu)) is not None
    }
    by_input: dict[Node, list[Node]] = {}
    for node, match in matched.items():
        by_input.setdefault(base_of(match.x), []).append(node)
    order = {node: index for index, node in enumerate(graph.nodes)}
    for nodes in by_input.values():
        for pair in itertools.combinations(nodes, 2):
            gate = match_gate(pair)
            if gate is not None:
                first, second = pair[::-1] if gate.swapped else pair
                _replace_gate(matched, first, second, gate.result, gate.activation)
    for match in sorted(matched.values(), key=lambda match: order[match.matmul]):
        total, other = _added(match.matmul)
        write = Writer(total)
        epilogue = "" if other is None else "add"
        _replace(write, total, _call(write, match, other, epilogue))


def target_gpu() -> GpuProperties | None:
    """Return the GPU description that is compiled for, if its tiles are known; None if there is a GPU, or several are described."""
    if not torch.cuda.is_available():
        return None
    gpu = torch.cuda.get_device_properties(0)
    if not isinstance(gpu, GpuProperties) or gpu.per_gpu or gpu.others:
        return None
    known = gpu.capability == _CAPABILITY and gpu.platform == _PLATFORM
    return gpu if known and _encodes() else None


def _encodes() -> bool:
    """Whether the host code of the installed AOTInductor encodes the descriptors of all tiles."""
    from torch._inductor.codegen.cuda.device_op_overrides import CUDADeviceOpOverrides

    write: Any = getattr(CUDADeviceOpOverrides(), "tma_descriptor_helpers", None)
    return write is not None and NARROW in write()


def _match(
    node: Node, weights: Mapping[Node, torch.Tensor], gpu: GpuProperties
) -> _TmaMatmul | None:
    if not is_call(node, _MATMULS):
        return None
    x, weight, bias = _operands(node)
    shape, dtype = x.meta["val"].shape, x.meta["val"].dtype
    if dtype not in _DTYPES or bias is not None or len(shape) < 2:
        return None
    if any(size != 1 for size in shape[:-2]) or not is_aligned(x):
        return None
    transposed = is_call(node, ("aten.mm",))
    stored = match_quantized_weight(weight, transposed, weights, (dtype,))
    if stored is None:
        return None
    n, k = weights[stored.weight].shape
    if k % 8 or n % 8:
        return None
    tile = _tile(shape[-2], n, k, gpu)
    return None if tile is None else _TmaMatmul(node, stored.weight, tile)


def _operands(matmul: Node) -> tuple[Any, Any, Any]:
    """Return the left operand, the weight and the bias of a matmul."""
    arguments = named(matmul)
    if is_call(matmul, ("aten.linear",)):
        return arguments["input"], arguments["weight"], arguments["bias"]
    return arguments["self"], arguments["mat2"], None


def _tile(rows: int | torch.SymInt, n: int, k: int, gpu: GpuProperties) -> int | None:
    """Return the number of the tile that is faster than the fastest of Inductor's; None if there is none."""
    # It imports Triton, which CPU builds of PyTorch lack.
    from executorch.backends.cuda.triton import _tma_matmul

    least, example, most = row_counts(rows)
    if example < _ROWS or least < 1:
        return None

    def gains(m: int) -> list[float]:
        """Return the speedup by each tile."""
        read = 2 * (m * k + n * k) / 1e3 / gpu.kilobytes_per_us
        theirs = _inductors_microseconds(m, n, k, gpu, gpu.measurements)
        ours = [
            tile.microseconds(m, n, k, gpu.multi_processor_count)
            for tile in _tma_matmul.TILES
        ]
        return [max(theirs, read) / max(us, read) for us in ours]

    at_example = gains(example)
    at_most = at_example if most == example else gains(most)
    fitting = [tile for tile, gain in enumerate(at_most) if gain > 1 / _LOSS]
    tile = max(fitting, key=at_example.__getitem__, default=None)
    return tile if tile is not None and at_example[tile] > _GAIN else None


# A model's layers have the same matmuls, and each takes a tenth of a second. GPUs of one description may differ in measurements.
@functools.lru_cache(maxsize=4096)
def _inductors_microseconds(
    m: int, n: int, k: int, gpu: GpuProperties, measurements: tuple[Path, ...]
) -> float:
    """Return the microseconds that the model expects of the fastest tile of Inductor's template; infinite if none was measured."""
    matmul = Matmul("product float16", m, n, k)
    tile = fastest(matmul, gpu)
    return math.inf if tile is None else math.exp(cost(matmul, tile, gpu))


def _added(matmul: Node) -> tuple[Node, Node | None]:
    """Return the node that adds a residual of the same shape to a matmul, and the residual; else the matmul, and None."""
    total, other = match_added(matmul) or (matmul, None)
    shape = matmul.meta["val"].shape
    if other is None or any(n.meta["val"].shape != shape for n in (total, other)):
        return matmul, None
    return total, other


def _call(
    write: Writer, match: _TmaMatmul, other: Node | None = None, epilogue: str = ""
) -> Node:
    from executorch.backends.cuda.triton._tma_matmul import OPERATOR

    x = _matrix(write, match.x)
    if other is None:
        return write(OPERATOR, x, match.weight, match.tile)
    other = _matrix(write, other)
    return write(OPERATOR, x, match.weight, match.tile, other, epilogue)


def _matrix(write: Writer, x: Node) -> Node:
    """Return a value of two dimensions, without those of size 1 before them."""
    for _ in range(x.meta["val"].ndim - 2):
        x = write(aten.squeeze_copy.dims, x, [0])
    return x


def _replace(write: Writer, node: Node, result: Node) -> None:
    for _ in range(node.meta["val"].ndim - 2):
        result = write(aten.unsqueeze_copy.default, result, 0)
    node.replace_all_uses_with(result)


def _replace_gate(
    matched: dict[Node, _TmaMatmul],
    first: Node,
    second: Node,
    product: Node,
    activation: str,
) -> None:
    """Replace a gate, what it is multiplied with, and their product, by two calls."""
    if product.meta["val"].shape != first.meta["val"].shape:
        return
    write = Writer(product)
    gate = _call(write, matched.pop(first))
    result = _call(write, matched.pop(second), gate, activation)
    _replace(write, product, result)


__all__ = ["overrides", "use_tma"]
