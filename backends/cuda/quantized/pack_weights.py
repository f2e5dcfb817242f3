"""Pack quantized weights into their bit width, and replace matmuls that read them by fused-dequant GEMVs.

torchao and PT2E keep what has less than eight bits one to a byte where no kernel packs it. Here as many
share a byte as fit, when a program is compiled, and are taken apart where they are read. A product of one
row, as a language model's next token takes, reads what is kept (:mod:`.fuse_gemvs`). A product by tiles would
write the weight to memory first, in floating point.
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
from executorch.backends.cuda.quantized.fuse_gemvs import read_as_kept
from executorch.backends.cuda.quantized.packed_weights import Packed, kept_as
from executorch.exir.capture._config import EdgeCompileConfig
from executorch.exir.verification.verifier import EXIREdgeDialectVerifier
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node


def keep_quantized(program: ExportedProgram) -> None:
    """Pack the weights of ``program`` and have products of one row read them as they are, in place.

    Args:
        program: In the edge dialect, on the host, with its weights.
    """
    weights = _weights(program)
    packed = _pack(program, weights)
    _cast(program, weights)
    renamed = program.graph_signature.get_replace_hook()
    with program.graph_module._set_replace_hook(renamed):
        read_as_kept(program.graph, packed, weights)
        for node in list(program.graph.nodes):
            if is_call(node, ("aten.embedding",)):
                _look_up(node, packed, weights)
            elif is_call(node, ("aten._int_mm",)):
                _of_signed(node)
        for node in list(program.graph.nodes):
            if is_call(node, CASTS):
                _by_way_of_int16(node)
    for weight, form in packed.items():
        _unpack(weight, form)
    # What is written is for Inductor alone, and of no dialect.
    config = EdgeCompileConfig(_check_ir_validity=False)
    program._verifiers = [EXIREdgeDialectVerifier(config, class_only=True)]
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def _weights(program: ExportedProgram) -> dict[Node, torch.Tensor]:
    """Return the placeholders of tensors that are never written to, with the tensors."""
    signature = program.graph_signature
    written = set(signature.buffers_to_mutate.values())
    kept = {**program.constants, **program.state_dict}
    targets = {
        spec.arg.name: spec.target
        for spec in signature.input_specs
        if spec.kind != InputKind.USER_INPUT and spec.target not in written
    }
    return {
        node: kept[target]
        for node in program.graph.find_nodes(op="placeholder")
        if isinstance(kept.get(target := targets.get(node.name)), torch.Tensor)
    }


def _pack(
    program: ExportedProgram, weights: dict[Node, torch.Tensor]
) -> dict[Node, Packed]:
    """Pack the weights that can be, under names of their own, and return how."""
    found: dict[Node, Packed] = {}
    for node, tensor in weights.items():
        form = _form(node, tensor)
        if form is None:
            continue
        held = form.pack(tensor)
        _keep(program, weights, node, form.name, held)
        found[node] = form
    return found


def _cast(program: ExportedProgram, weights: dict[Node, torch.Tensor]) -> None:
    """Cast what all readers would: torchao's scales of int8 are in float32, and read in the model's type."""
    for node, tensor in list(weights.items()):
        types = {user.meta["val"].dtype for user in node.users if is_call(user, CASTS)}
        casts = [user for user in node.users if is_call(user, CASTS)]
        if tensor.dtype != torch.float32 or len(casts) != len(node.users):
            continue
        if types not in ({torch.bfloat16}, {torch.float16}):
            continue
        (dtype,) = types
        form = f"in_{dtype}".replace("torch.", "")
        _keep(program, weights, node, form, tensor.to(dtype))
        for user in casts:
            user.replace_all_uses_with(node)


def _keep(
    program: ExportedProgram,
    weights: dict[Node, torch.Tensor],
    node: Node,
    form: str,
    tensor: torch.Tensor,
) -> None:
    """Keep a weight in another form, under a name that says so: methods share weights by name."""
    (spec,) = (
        s for s in program.graph_signature.input_specs if s.arg.name == node.name
    )
    spec.target = f"{spec.target}.{form}"
    program._state_dict[spec.target] = weights[node] = tensor
    spec.kind, spec.persistent = InputKind.BUFFER, True
    with node.meta["val"].fake_mode:
        node.meta["val"] = torch.empty_like(tensor, device="cpu")


def _form(weight: Node, tensor: torch.Tensor) -> Packed | None:
    """Return how a weight can be packed, if all who read it take it for one of few bits."""
    if tensor.dtype not in (torch.int8, torch.uint8) or tensor.ndim != 2:
        return None
    forms: set[Packed | None] = set()
    for user in weight.users:
        if not is_call(user, DEQUANTIZE) or user.args[0] is not weight:
            return None
        given = named(user)
        least, most = given["quant_min"], given["quant_max"]
        group = given.get("block_size", given.get("group_size", tensor.shape))
        group = group if isinstance(group, int) else group[-1]
        values = most - least + 1 if isinstance(least, int) and least < most else 256
        bits = next(b for b in (1, 2, 4, 8) if 1 << b >= values)
        fits = bits < 8 and group * bits % 8 == 0
        forms.add(Packed(bits, group, least) if fits else None)
    if len(forms) != 1 or None in forms or tensor.numel() == 0:
        return None
    (form,) = forms
    assert form is not None
    least, most = (int(each) for each in tensor.aminmax())
    return form if least - form.least >= 0 and most - form.least <= form.mask else None


def _unpack(weight: Node, form: Packed) -> None:
    """Have those who still read a weight take it apart first."""
    for user in list(weight.users):
        if not is_call(user, DEQUANTIZE):
            continue
        write = Writer(user)
        whole = _apart(write, weight, form, [weight.meta["val"].shape[0]])
        user.replace_input_with(weight, write.to(whole, _held_in(user)))


def _apart(write: Writer, held: Node, form: Packed, ahead: list[int]) -> Node:
    """Return the values of rows of a weight, in int8."""
    count = held.meta["val"].shape[-1] // form.bytes
    held = write.view(held, *ahead, count, 1, form.bytes)
    of = {"device": torch.device("cpu"), "dtype": torch.uint8}
    shifts = write(aten.arange.start_step, 0, 8, form.bits, **of)
    parts = write(
        aten.bitwise_right_shift.Tensor, held, write.view(shifts, form.in_a_byte, 1)
    )
    parts = write(aten.bitwise_and.Scalar, parts, form.mask)
    values = write(aten.add.Scalar, write.to(parts, torch.int8), form.least)
    return write.view(values, *ahead, count * form.group)


def _held_in(dequantize: Node) -> torch.dtype:
    given = named(dequantize)
    held = given.get("input_dtype", given.get("dtype"))
    # Of uint4 and the like nothing is stored: its values are given in a byte.
    return torch.uint8 if str(held).startswith("torch.uint") else torch.int8


def _look_up(
    node: Node,
    packed: Mapping[Node, Packed],
    weights: Mapping[Node, torch.Tensor],
) -> None:
    """Have what looks up rows of a weight of few bits make those alone of what is kept."""
    given = named(node)
    table, indices = given["weight"], given["indices"]
    kept = kept_as(table, False, weights)
    *ahead, columns = node.meta["val"].shape
    ahead = [n if isinstance(n, int) else -1 for n in ahead]
    if kept is None or table is kept.weight or ahead.count(-1) > 1:
        return
    write = Writer(node)
    values = write(node.target, kept.weight, indices)
    if kept.weight in packed:
        values = _apart(write, values, packed[kept.weight], ahead)
    values = write.to(values, torch.float32)
    groups, rows = columns // kept.group, weights[kept.weight].shape[0]
    values = write.view(values, *ahead, groups, kept.group)
    for operator, of_rows in (
        (aten.sub.Tensor, kept.zero),
        (aten.mul.Tensor, kept.scale),
    ):
        if of_rows is not None:
            found = write(node.target, write.view(of_rows, rows, groups), indices)
            found = write.view(write.to(found, torch.float32), *ahead, groups, 1)
            values = write(operator, values, found)
    values = write.to(write.view(values, *ahead, columns), node.meta["val"].dtype)
    node.replace_all_uses_with(values)


def _of_signed(product: Node) -> None:
    """Have a product of integers be of signed ones, which is what there are tiles for.

    torchao adds 128 for the sake of x86 processors, where a program is exported on one.
    """
    row, weight = product.all_input_nodes
    if row.meta["val"].dtype != torch.uint8:
        return
    write = Writer(product)
    row = write(aten.sub.Scalar, write.to(row, torch.int16), 128)
    result = write(product.target, write.to(row, torch.int8), weight)
    # Behind the product torchao takes as much away again.
    wide = write.to(weight, torch.int32)
    total = write(aten.sum.dim_IntList, wide, [0], dtype=torch.int32)
    less = write(aten.mul.Scalar, total, 128)
    product.replace_all_uses_with(write(aten.add.Tensor, result, less))


def _by_way_of_int16(cast: Node) -> None:
    """Have Inductor not see a product by a weight in int8 that is scaled behind it.

    For several rows in bfloat16 it has one operator for that, ``_weight_int8pack_mm``, and no kernel of it
    for a GPU but PyTorch's own: the compilation ends in ``NoValidChoicesError``.
    """
    (value,) = cast.all_input_nodes
    types = value.meta["val"].dtype, cast.meta["val"].dtype
    if types == (torch.int8, torch.bfloat16):
        cast.replace_input_with(value, Writer(cast).to(value, torch.int16))
