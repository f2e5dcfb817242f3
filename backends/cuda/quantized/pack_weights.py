"""Pack quantized weights into their bit width, and replace matmuls that read them by fused-dequant GEMVs.

torchao and PT2E store values of fewer than eight bits one per byte where no kernel packs them. Compilation packs as
many per byte as fit, and unpacks them where they are read. A GEMV, as in a language model's decode step, reads the
packed weight (:mod:`.fuse_gemvs`); a tiled matmul dequantizes it to memory first.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from executorch.backends.cuda._edge_calls import (
    CASTS,
    DEQUANTIZE,
    Writer,
    aten,
    is_call,
    named,
)
from executorch.backends.cuda._tma_matmuls import use_tma
from executorch.backends.cuda.quantized.fuse_gemvs import fuse_gemvs
from executorch.backends.cuda.quantized.packed_weights import (
    Packed,
    match_quantized_weight,
)
from executorch.exir._memory_pages import mapped_files, page_out
from executorch.exir.capture._config import EdgeCompileConfig
from executorch.exir.verification.verifier import EXIREdgeDialectVerifier
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node


def pack_quantized_weights(program: ExportedProgram) -> None:
    """Pack the quantized weights of ``program``, and have GEMVs read them packed, in place.

    Args:
        program: In the edge dialect, on the host, with its weights.
    """
    weights = _weights(program)
    packed = _pack(program, weights)
    _cast(program, weights)
    renamed = program.graph_signature.get_replace_hook()
    with program.graph_module._set_replace_hook(renamed):
        fuse_gemvs(program.graph, packed, weights)
        use_tma(program.graph, weights)
        for node in list(program.graph.nodes):
            if is_call(node, ("aten.embedding",)):
                _dequantize_rows(node, packed, weights)
            elif is_call(node, ("aten._int_mm",)):
                _make_signed(node)
        for node in list(program.graph.nodes):
            if is_call(node, CASTS):
                _cast_through_int16(node)
    for weight, packing in packed.items():
        _unpack(weight, packing)
    # The result is only for Inductor, and in no dialect.
    config = EdgeCompileConfig(_check_ir_validity=False)
    program._verifiers = [EXIREdgeDialectVerifier(config, class_only=True)]
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def packings(program: ExportedProgram) -> dict[str, Packed]:
    """Return how :func:`pack_quantized_weights` packs the weights of ``program``, by their names; it changes nothing."""
    targets = {s.arg.name: s.target for s in program.graph_signature.input_specs}
    packing_of = {
        str(targets[node.name]): _packing_of(node, tensor)
        for node, tensor in _weights(program).items()
    }
    return {
        name: packing for name, packing in packing_of.items() if packing is not None
    }


def _weights(program: ExportedProgram) -> dict[Node, torch.Tensor]:
    """Return the placeholders of tensors that are never written to, with the tensors."""
    signature = program.graph_signature
    written = set(signature.buffers_to_mutate.values())
    tensors = {**program.constants, **program.state_dict}
    targets = {
        spec.arg.name: spec.target
        for spec in signature.input_specs
        if spec.kind != InputKind.USER_INPUT and spec.target not in written
    }
    return {
        node: tensors[target]
        for node in program.graph.find_nodes(op="placeholder")
        if isinstance(tensors.get(target := targets.get(node.name)), torch.Tensor)
    }


def _pack(
    program: ExportedProgram, weights: dict[Node, torch.Tensor]
) -> dict[Node, Packed]:
    """Pack the weights that can be, under new names, and return their packing."""
    packed: dict[Node, Packed] = {}
    files = mapped_files()
    for node, tensor in weights.items():
        packing = _packing_of(node, tensor)
        if packing is None:
            continue
        stored = packing.pack(tensor)
        page_out(tensor, files)
        _store(program, weights, node, packing.name, stored)
        packed[node] = packing
    return packed


def _cast(program: ExportedProgram, weights: dict[Node, torch.Tensor]) -> None:
    """Cast constants once that all users cast: torchao's int8 scales are float32, and used in the model's dtype."""
    for node, tensor in list(weights.items()):
        types = {user.meta["val"].dtype for user in node.users if is_call(user, CASTS)}
        casts = [user for user in node.users if is_call(user, CASTS)]
        if tensor.dtype != torch.float32 or len(casts) != len(node.users):
            continue
        if types not in ({torch.bfloat16}, {torch.float16}):
            continue
        (dtype,) = types
        suffix = f"in_{dtype}".replace("torch.", "")
        _store(program, weights, node, suffix, tensor.to(dtype))
        for user in casts:
            user.replace_all_uses_with(node)


def _store(
    program: ExportedProgram,
    weights: dict[Node, torch.Tensor],
    node: Node,
    suffix: str,
    tensor: torch.Tensor,
) -> None:
    """Store a weight in another form, under a name that says so: methods share weights by name."""
    (spec,) = (
        s for s in program.graph_signature.input_specs if s.arg.name == node.name
    )
    spec.target = f"{spec.target}.{suffix}"
    program._state_dict[spec.target] = weights[node] = tensor
    spec.kind, spec.persistent = InputKind.BUFFER, True
    with node.meta["val"].fake_mode:
        node.meta["val"] = torch.empty_like(tensor, device="cpu")


def _packing_of(weight: Node, tensor: torch.Tensor) -> Packed | None:
    """Return the packing of a weight, if all its users dequantize it from the same few bits."""
    if tensor.dtype not in (torch.int8, torch.uint8) or tensor.ndim != 2:
        return None
    packings: set[Packed | None] = set()
    for user in weight.users:
        if not is_call(user, DEQUANTIZE) or user.args[0] is not weight:
            return None
        arguments = named(user)
        quant_min, quant_max = arguments["quant_min"], arguments["quant_max"]
        group = arguments.get("block_size", arguments.get("group_size", tensor.shape))
        group = group if isinstance(group, int) else group[-1]
        values = (
            quant_max - quant_min + 1
            if isinstance(quant_min, int) and quant_min < quant_max
            else 256
        )
        bits = next(b for b in (1, 2, 4, 8) if 1 << b >= values)
        fits = bits < 8 and group * bits % 8 == 0
        packings.add(Packed(bits, group, quant_min) if fits else None)
    if len(packings) != 1 or None in packings or tensor.numel() == 0:
        return None
    (packing,) = packings
    assert packing is not None
    smallest, largest = (int(value) for value in tensor.aminmax())
    fits = smallest >= packing.quant_min and largest - packing.quant_min <= packing.mask
    return packing if fits else None


def _unpack(weight: Node, packing: Packed) -> None:
    """Unpack a weight before its remaining users."""
    for user in list(weight.users):
        if not is_call(user, DEQUANTIZE):
            continue
        write = Writer(user)
        unpacked = _unpacked(write, weight, packing, [weight.meta["val"].shape[0]])
        user.replace_input_with(weight, write.to(unpacked, _storage_dtype(user)))


def _unpacked(write: Writer, stored: Node, packing: Packed, ahead: list[int]) -> Node:
    """Emit the unpacked values of rows of a weight, in int8."""
    count = stored.meta["val"].shape[-1] // packing.bytes
    stored = write.view(stored, *ahead, count, 1, packing.bytes)
    options = {"device": torch.device("cpu"), "dtype": torch.uint8}
    shifts = write(aten.arange.start_step, 0, 8, packing.bits, **options)
    parts = write(
        aten.bitwise_right_shift.Tensor,
        stored,
        write.view(shifts, packing.values_per_byte, 1),
    )
    parts = write(aten.bitwise_and.Scalar, parts, packing.mask)
    values = write(aten.add.Scalar, write.to(parts, torch.int8), packing.quant_min)
    return write.view(values, *ahead, count * packing.group)


def _storage_dtype(dequantize: Node) -> torch.dtype:
    arguments = named(dequantize)
    stored = arguments.get("input_dtype", arguments.get("dtype"))
    # uint4 and the like have no storage: their values are in bytes.
    return torch.uint8 if str(stored).startswith("torch.uint") else torch.int8


def _dequantize_rows(
    node: Node,
    packed: Mapping[Node, Packed],
    weights: Mapping[Node, torch.Tensor],
) -> None:
    """Move an embedding's dequantization behind the look-up: only the rows that are read are dequantized."""
    arguments = named(node)
    table, indices = arguments["weight"], arguments["indices"]
    quantized = match_quantized_weight(table, False, weights)
    *ahead, columns = node.meta["val"].shape
    ahead = [n if isinstance(n, int) else -1 for n in ahead]
    if quantized is None or table is quantized.weight or ahead.count(-1) > 1:
        return
    write = Writer(node)
    values = write(node.target, quantized.weight, indices)
    if quantized.weight in packed:
        values = _unpacked(write, values, packed[quantized.weight], ahead)
    values = write.to(values, torch.float32)
    groups, rows = columns // quantized.group, weights[quantized.weight].shape[0]
    values = write.view(values, *ahead, groups, quantized.group)
    for operator, per_row in (
        (aten.sub.Tensor, quantized.zero),
        (aten.mul.Tensor, quantized.scale),
    ):
        if per_row is not None:
            factor = write(node.target, write.view(per_row, rows, groups), indices)
            factor = write.view(write.to(factor, torch.float32), *ahead, groups, 1)
            values = write(operator, values, factor)
    values = write.to(write.view(values, *ahead, columns), node.meta["val"].dtype)
    node.replace_all_uses_with(values)


def _make_signed(matmul: Node) -> None:
    """Make an integer matmul signed, which is what there are tile configurations for.

    torchao adds 128 for the sake of x86 processors, where a program is exported on one.
    """
    vector, weight = matmul.all_input_nodes
    if vector.meta["val"].dtype != torch.uint8:
        return
    write = Writer(matmul)
    vector = write(aten.sub.Scalar, write.to(vector, torch.int16), 128)
    result = write(matmul.target, write.to(vector, torch.int8), weight)
    # torchao subtracts as much again behind the matmul.
    wide = write.to(weight, torch.int32)
    total = write(aten.sum.dim_IntList, wide, [0], dtype=torch.int32)
    correction = write(aten.mul.Scalar, total, 128)
    matmul.replace_all_uses_with(write(aten.add.Tensor, result, correction))


def _cast_through_int16(cast: Node) -> None:
    """Hide int8 matmuls followed by a scale from Inductor's pattern matcher.

    For several rows in bfloat16 it replaces them by ``_weight_int8pack_mm``, for which it has no GPU template:
    compilation ends in ``NoValidChoicesError``.
    """
    (value,) = cast.all_input_nodes
    types = value.meta["val"].dtype, cast.meta["val"].dtype
    if types == (torch.int8, torch.bfloat16):
        cast.replace_input_with(value, Writer(cast).to(value, torch.int16))
