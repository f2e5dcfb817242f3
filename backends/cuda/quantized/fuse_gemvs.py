"""Fuse the GEMVs that share an input vector into one kernel launch.

A launch takes microseconds to ramp up to the memory's bandwidth, and as long again to drain. GEMVs that share an
input vector, as those of query, key and value do, are found in the graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import torch
from executorch.backends.cuda._edge_calls import (
    Writer,
    aten,
    is_call,
    named,
)
from executorch.backends.cuda.quantized.gemv_neighbors import (
    RmsNorm,
    base_of,
    is_view,
    match_added,
    match_gate,
    match_rms_norm,
    readers,
)
from executorch.backends.cuda.quantized.packed_weights import (
    VECTOR_DTYPES,
    Packed,
    QuantizedWeight,
    match_quantized_weight,
)
from torch.fx import Graph, Node

_MATMULS = ("aten.mm", "aten.addmm", "aten.linear")
_SLICES = ("aten.slice", "aten.slice_copy", "aten.select", "aten.select_copy")
#: Other views that may begin within the storage of their input.
_WITHIN = ("aten.as_strided", "aten.as_strided_copy", "aten.permute", "aten.expand")
_HALVES = (torch.bfloat16, torch.float16)
#: Elements of weights up to which each program normalizes the vector itself. Of the 50 Mi of Qwen3 4B's gate that takes an
#: H200 2.5 us, of the 16 Mi of its query, key and value 1.1; a launch takes 1.5 to 2. Fewer bits leave no instruction for it:
#: 12 layers of 4B take 665 us in int8 with it, 650 without.
_NORMALIZED = 1 << 25


@dataclass(frozen=True)
class _Gemv:
    """A matmul of one row.

    Attributes:
        matmul: Its node.
        result: The node to replace: the matmul, or the scaling behind it.
        vector: The input, (1, K) in any shape.
        quantized: The weight.
        bits: Per value.
        quant_min: The value of bits of 0.
        bias: Added to the matmul, if any.
    """

    matmul: Node
    result: Node
    vector: Node
    quantized: QuantizedWeight
    bits: int
    quant_min: int
    bias: Node | None


def fuse_gemvs(
    graph: Graph,
    packed: Mapping[Node, Packed],
    weights: Mapping[Node, torch.Tensor],
) -> None:
    """Replace matmuls of one row by fused GEMVs over stored weights, in place.

    Floating-point weights are included where several launches become one.

    Args:
        graph: In the edge dialect.
        packed: Packing of weights, by their placeholders.
        weights: Constant tensors by their placeholders.
    """
    by_vector: dict[tuple[object, ...], list[_Gemv]] = {}
    for node in graph.nodes:
        gemv = _match(node, packed, weights)
        if gemv is not None:
            dtypes = [
                value and value.meta["val"].dtype
                for value in (
                    gemv.quantized.weight,
                    gemv.quantized.scale,
                    gemv.quantized.zero,
                )
            ]
            options = (gemv.quantized.group, gemv.bits, gemv.quant_min, *dtypes)
            dtype = gemv.matmul.meta["val"].dtype
            by_vector.setdefault((gemv.vector, dtype, *options), []).append(gemv)
    order = {node: index for index, node in enumerate(graph.nodes)}
    matmuls = {gemv.matmul for gemvs in by_vector.values() for gemv in gemvs}
    replaced: dict[Node | None, Node] = {}
    for gemvs in by_vector.values():
        norm = _norm_before(gemvs, matmuls, weights)
        for fused in _fusable(gemvs, order):
            if fused[0].bits < 16 or norm is not None or _beats_inductor(fused):
                _replace(fused, norm, weights, replaced)


def _norm_before(
    gemvs: Sequence[_Gemv],
    matmuls: Set[Node],
    weights: Mapping[Node, torch.Tensor],
) -> RmsNorm | None:
    """Return the RMS norm that GEMVs of one vector are to compute themselves; None if there is none, or it has to be in memory.

    Args:
        gemvs: Of one vector.
        matmuls: The matmul nodes of all GEMVs.
        weights: Constant tensors by their placeholders.
    """
    vector = gemvs[0].vector
    rows = sum(len(weights[gemv.quantized.weight]) for gemv in gemvs)
    size = rows * math.prod(vector.meta["val"].shape)
    few_bits = any(gemv.bits < 16 for gemv in gemvs)
    if few_bits or size > _NORMALIZED or not readers(vector) <= matmuls:
        return None
    return match_rms_norm(vector, weights)


def _match(
    matmul: Node,
    packed: Mapping[Node, Packed],
    weights: Mapping[Node, torch.Tensor],
) -> _Gemv | None:
    if not is_call(matmul, _MATMULS):
        return None
    arguments = named(matmul)
    vector = arguments.get(
        "mat1", arguments["input" if "input" in arguments else "self"]
    )
    weight = arguments["weight"] if "weight" in arguments else arguments["mat2"]
    bias = arguments.get("bias", arguments["self"] if "mat1" in arguments else None)
    shape, dtype = matmul.meta["val"].shape, vector.meta["val"].dtype
    scaled = arguments.get("alpha", 1) != 1 or arguments.get("beta", 1) != 1
    if (
        scaled
        or not all(isinstance(n, int) for n in shape)
        or dtype not in VECTOR_DTYPES
    ):
        return None
    if math.prod(shape[:-1]) != 1:
        return None
    # It imports Triton, which CPU builds of PyTorch lack.
    from executorch.backends.cuda.quantized.gemv_kernel import supports_rows

    transposed = "weight" not in arguments
    quantized = match_quantized_weight(weight, transposed, weights)
    if quantized is None and dtype in _HALVES:
        quantized = match_quantized_weight(weight, transposed, weights, (dtype,))
    if quantized is None:
        return None
    stored = weights[quantized.weight]
    packing = packed.get(
        quantized.weight, Packed(8 * stored.dtype.itemsize, quantized.group, 0)
    )
    width = stored.shape[1] * stored.dtype.itemsize
    if not supports_rows(width, quantized.group * packing.bits // 8):
        return None
    if (
        quantized.zero is not None
        and not weights.get(quantized.zero, torch.ones(1)).any()
    ):
        quantized = replace(quantized, zero=None)
    result = matmul
    if packing.bits == 8 and quantized.scale is None and bias is None:
        result, factor = _scaled_behind(matmul, len(stored), weights)
        quantized = replace(quantized, scale=factor)
    vector = base_of(vector)
    return _Gemv(
        matmul, result, vector, quantized, packing.bits, packing.quant_min, bias
    )


def _scaled_behind(
    matmul: Node, rows: int, weights: Mapping[Node, torch.Tensor]
) -> tuple[Node, Node | None]:
    """Return the node that multiplies a matmul by a scale per row of the weight, and the scale."""
    result = matmul
    while len(result.users) == 1:
        (user,) = result.users
        if user.op == "output":
            break
        value = user.meta["val"]
        if is_view(user) and value.shape[-1] == rows:
            result = user
            continue
        if not is_call(user, ("aten.mul",)) or len(user.all_input_nodes) != 2:
            break
        (factor,) = (
            operand for operand in user.all_input_nodes if operand is not result
        )
        base = base_of(factor)
        shape = factor.meta["val"].shape
        fits = base in weights and shape[-1:] == (rows,) and math.prod(shape) == rows
        same = (value.dtype, value.numel()) == (matmul.meta["val"].dtype, rows)
        if fits and same and weights[base].dtype in VECTOR_DTYPES:
            return user, base
        break
    return matmul, None


def _fusable(
    gemvs: Sequence[_Gemv], order: Mapping[Node, int]
) -> Iterator[list[_Gemv]]:
    """Yield groups of GEMVs of one vector that a launch in the place of the first can compute."""
    from executorch.backends.cuda.quantized.gemv_kernel import MAX_FUSED

    fused: list[_Gemv] = []
    for gemv in gemvs:
        needs = [
            n for n in (gemv.quantized.scale, gemv.quantized.zero) if n is not None
        ]
        first = order[fused[0].matmul] if fused else 0
        if fused and (len(fused) == MAX_FUSED or any(order[n] >= first for n in needs)):
            yield fused
            fused = []
        fused.append(gemv)
    yield fused


def _beats_inductor(fused: Sequence[_Gemv]) -> bool:
    """Whether GEMVs over floating-point weights are faster fused: Inductor fuses two of one length itself, and each with others.

    The head of Qwen3 0.6B takes an H200 77 us, as Inductor's sum 93. Six layers of it take 137.6 us where GEMVs in front of a
    residual are ours, and 143.5 where they are sums.
    """
    from executorch.backends.cuda.quantized.gemv_kernel import MANY_ROWS

    lengths = [math.prod(each.matmul.meta["val"].shape) for each in fused]
    if len(fused) > 2 or len({*lengths}) > 1 or sum(lengths) >= MANY_ROWS:
        return True
    return len(fused) == 1 and match_added(fused[0].result) is not None


def _replace(
    fused: Sequence[_Gemv],
    norm: RmsNorm | None,
    weights: Mapping[Node, torch.Tensor],
    replaced: dict[Node | None, Node],
) -> None:
    """Replace GEMVs by one call of the fused operator, with the epilogue that it supports.

    Args:
        fused: The GEMVs.
        norm: The RMS norm that computes their vector, to be fused.
        weights: Constant tensors by their placeholders.
        replaced: Replacement of each result so far, by the replaced node; those of ``fused`` are added.
    """
    biased = any(gemv.bias is not None for gemv in fused)
    gate = None if biased else match_gate([gemv.result for gemv in fused])
    if gate is not None:
        fused = fused[::-1] if gate.swapped else fused
        write = Writer(gate.result)
        result = _call(write, fused, norm, weights, replaced, gate.activation)
        _replace_node(write, gate.result, result, replaced)
        return
    first = fused[0]
    if len(fused) == 1:
        total, added = (first.result, first.bias)
        if first.bias is None:
            total, added = match_added(first.result) or (first.result, None)
        write = Writer(total)
        result = _call(write, fused, norm, weights, replaced, added=added)
        _replace_node(write, total, result, replaced)
        return
    outputs = _call(Writer(first.matmul), fused, norm, weights, replaced)
    begin = 0
    for gemv in fused:
        # In its own place: the bias may be computed after the first matmul.
        write = Writer(gemv.matmul)
        rows = len(weights[gemv.quantized.weight])
        result = write(aten.slice_copy.Tensor, outputs, 1, begin, begin + rows)
        begin += rows
        if gemv.bias is not None:
            bias = replaced.get(gemv.bias, gemv.bias)
            result = write(aten.add.Tensor, result, bias)
        _replace_node(write, gemv.result, result, replaced)


def _call(
    write: Writer,
    fused: Sequence[_Gemv],
    norm: RmsNorm | None,
    weights: Mapping[Node, torch.Tensor],
    replaced: Mapping[Node | None, Node],
    activation: str = "",
    added: Node | None = None,
) -> Node:
    """Write the call of the fused operator."""
    from executorch.backends.cuda.quantized.gemv_kernel import OPERATOR

    first = fused[0]
    lengths = [len(weights[gemv.quantized.weight]) for gemv in fused]
    scales, zeros = (
        [
            write.view(replaced.get(value, value), rows, -1)
            for value, rows in zip(values, lengths, strict=True)
            if value is not None
        ]
        for values in (
            [gemv.quantized.scale for gemv in fused],
            [gemv.quantized.zero for gemv in fused],
        )
    )
    vector = norm.vector if norm is not None else first.vector
    vector = replaced.get(vector, vector)
    options = (first.bits, first.quantized.group, first.quant_min, is_aligned(vector))
    more: dict[str, object] = {"constant": True}
    if norm is not None:
        more |= {"norm": norm.weight, "eps": norm.eps}
    if activation:
        more["activation"] = activation
    if added is not None:
        more["added"] = write.view(replaced.get(added, added), -1)
    stored = [gemv.quantized.weight for gemv in fused]
    row = write.view(vector, 1, -1)
    return write(OPERATOR, row, stored, scales, zeros, *options, **more)


def _replace_node(
    write: Writer, node: Node, result: Node, replaced: dict[Node | None, Node]
) -> None:
    result = write.view(result, *node.meta["val"].shape)
    node.replace_all_uses_with(result)
    replaced[node] = result


def is_aligned(vector: Node) -> bool:
    """Whether a vector begins at a multiple of 16 bytes, as all memory does that Inductor plans.

    Slices of slices, whose strides aren't known here, count as unaligned.
    """
    moved = False
    while is_view(vector) or is_call(vector, _SLICES):
        source = vector.all_input_nodes[0]
        if is_call(vector, _SLICES):
            arguments, value = named(vector), source.meta["val"]
            dim = arguments["dim"] % value.ndim
            begin = arguments.get("start", arguments.get("index")) or 0
            inner = math.prod(value.shape[dim + 1 :])
            if moved or not isinstance(begin, int) or not isinstance(inner, int):
                return False
            if begin < 0:
                begin += value.shape[dim]
            moved = begin != 0
            if begin * inner * value.dtype.itemsize % 16:
                return False
        vector = source
    return "getitem" not in str(vector.target) and not is_call(vector, _WITHIN)
