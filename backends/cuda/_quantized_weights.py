"""Weights that are kept in few bits: in as many bytes, and read as they are kept for a single row.

torchao and PT2E keep what has less than eight bits one to a byte where no kernel packs it. Here as many
share a byte as fit, when a program is compiled, and are taken apart where they are read. A product of one
row, as a language model's next token takes, reads what is kept (:mod:`._row_product`). A product by tiles would write the weight to memory first, in
floating point.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from executorch.exir.capture._config import EdgeCompileConfig
from executorch.exir.dialects._ops import ops
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.verification.verifier import EXIREdgeDialectVerifier
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node

aten = ops.edge.aten

#: Conversions from quantized values.
_DEQUANTIZE = ("torchao.dequantize_affine", "quantized_decomposed.dequantize_per_")
_PRODUCTS = ("aten.mm", "aten.addmm", "aten.linear")
_TRANSPOSED = ("aten.permute", "aten.permute_copy", "aten.t", "aten.t_copy")
_CASTS = ("aten._to_copy", "dim_order_ops._to_dim_order_copy")
#: Types of rows, which have every value of the types behind them: those of weights.
_ROWS = (torch.float16, torch.bfloat16, torch.float32)
_EXACT = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True)
class Packed:
    """How a weight of shape (N, K) is kept as (N, K * bits / 8) of uint8, 8 / bits to a byte.

    Byte j of a group of ``group`` values has those at j, j + group * bits / 8, and so on, from its lowest
    bits up, and of each its distance from ``least``.
    """

    bits: int
    group: int
    least: int

    @property
    def in_a_byte(self) -> int:
        return 8 // self.bits

    @property
    def bytes(self) -> int:
        """Of a group."""
        return self.group // self.in_a_byte

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        rows = weight.shape[0]
        parts = (weight.to(torch.int16) - self.least).to(torch.uint8)
        parts = parts.view(rows, -1, self.in_a_byte, self.bytes)
        packed = torch.zeros_like(parts[:, :, 0])
        for index in range(self.in_a_byte):
            packed |= parts[:, :, index] << (index * self.bits)
        return packed.reshape(rows, -1)


class _Writer:
    """Writes calls into a graph before a node, with the fake values that they have."""

    def __init__(self, before: Node) -> None:
        self._graph: Graph = before.graph
        self._before = before

    def __call__(self, operator: Any, *args: Any, **kwargs: Any) -> Node:
        with self._graph.inserting_before(self._before):
            node = self._graph.call_function(operator, args, kwargs)
        given, named = torch.fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        node.meta["val"] = operator(*given, **named)
        return node

    def to(self, value: Node, dtype: torch.dtype) -> Node:
        if value.meta["val"].dtype == dtype:
            return value
        return self(aten._to_copy.default, value, dtype=dtype)

    def view(self, value: Node, *shape: int) -> Node:
        return self(aten.view_copy.default, value, list(shape))


def keep_quantized(program: ExportedProgram) -> None:
    """Pack the weights of ``program`` and have products of one row read them as they are, in place.

    Args:
        program: In the edge dialect, on the host, with its weights.
    """
    weights = _weights(program)
    packed = _pack(program, weights)
    renamed = program.graph_signature.get_replace_hook()
    with program.graph_module._set_replace_hook(renamed):
        for node in list(program.graph.nodes):
            if _is(node, _PRODUCTS):
                _row_product(node, packed, weights)
            elif _is(node, ("aten.embedding",)):
                _look_up(node, packed, weights)
            elif _is(node, ("aten._int_mm",)):
                _of_signed(node)
        for node in list(program.graph.nodes):
            if _is(node, _CASTS):
                _by_way_of_int16(node)
    for weight, form in packed.items():
        _unpack(weight, form)
    # What is written is for Inductor alone, and of no dialect.
    config = EdgeCompileConfig(_check_ir_validity=False)
    program._verifiers = [EXIREdgeDialectVerifier(config, class_only=True)]
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def _operator(node: Node) -> Any:
    target = node.target
    return target._op if isinstance(target, EdgeOpOverload) else target


def _is(node: Any, names: Iterable[str]) -> bool:
    if not isinstance(node, Node) or node.op != "call_function":
        return False
    name = str(_operator(node))
    return name.startswith(tuple(f"{each}." for each in names)) or (
        names is _DEQUANTIZE and name.startswith(_DEQUANTIZE)
    )


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


def _named(node: Node) -> dict[str, Any]:
    """Return the arguments of a call by the names that the operator's schema has for them."""
    parameters = _operator(node)._schema.arguments
    named = {p.name: p.default_value for p in parameters if p.has_default_value()}
    given = zip(parameters, node.args, strict=False)
    return {**named, **{p.name: value for p, value in given}, **node.kwargs}


def _pack(
    program: ExportedProgram, weights: dict[Node, torch.Tensor]
) -> dict[Node, Packed]:
    """Pack the weights that can be, under names of their own, and return how."""
    found: dict[Node, Packed] = {}
    for node, tensor in weights.items():
        form = _form(node, tensor)
        if form is None:
            continue
        (spec,) = (
            s for s in program.graph_signature.input_specs if s.arg.name == node.name
        )
        spec.target = f"{spec.target}.packed_{form.bits}_{form.group}"
        program._state_dict[spec.target] = weights[node] = form.pack(tensor)
        spec.kind, spec.persistent = InputKind.BUFFER, True
        found[node] = form
        with node.meta["val"].fake_mode:
            node.meta["val"] = torch.empty_like(weights[node], device="cpu")
    return found


def _form(weight: Node, tensor: torch.Tensor) -> Packed | None:
    """Return how a weight can be packed, if all who read it take it for one of few bits."""
    if tensor.dtype not in (torch.int8, torch.uint8) or tensor.ndim != 2:
        return None
    forms: set[Packed | None] = set()
    for user in weight.users:
        if not _is(user, _DEQUANTIZE) or user.args[0] is not weight:
            return None
        given = _named(user)
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
        if not _is(user, _DEQUANTIZE):
            continue
        write = _Writer(user)
        whole = _apart(write, weight, form, [weight.meta["val"].shape[0]])
        user.replace_input_with(weight, write.to(whole, _held_in(user)))


def _apart(write: _Writer, held: Node, form: Packed, ahead: list[int]) -> Node:
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
    given = _named(dequantize)
    held = given.get("input_dtype", given.get("dtype"))
    return held if isinstance(held, torch.dtype) else torch.int8


def _row_product(
    product: Node,
    packed: Mapping[Node, Packed],
    weights: Mapping[Node, torch.Tensor],
) -> None:
    """Have a product of one row by a weight of few bits read it as it is kept."""
    given = _named(product)
    row = given.get("mat1", given["input" if "input" in given else "self"])
    weight = given["weight"] if "weight" in given else given["mat2"]
    bias = given.get("bias", given["self"] if "mat1" in given else None)
    shape = product.meta["val"].shape
    scaled = given.get("alpha", 1) != 1 or given.get("beta", 1) != 1
    if scaled or not all(isinstance(n, int) for n in shape):
        return
    if row.meta["val"].dtype not in _ROWS:
        return
    kept = _kept(weight, "weight" not in given, weights)
    if math.prod(shape[:-1]) != 1 or kept is None:
        return
    form = packed.get(kept.weight, Packed(8, kept.group, 0))
    # By Triton, which not every release of PyTorch has.
    from executorch.backends.cuda._row_product import OPERATOR, takes

    if not takes(weights[kept.weight].shape[1], form.bytes):
        return
    write = _Writer(product)
    zero = kept.zero
    if zero is not None and not weights.get(zero, torch.ones(1)).any():
        zero = None
    scale, zero = (
        each and write.view(each, weights[kept.weight].shape[0], -1)
        for each in (kept.scale, zero)
    )
    row = write.view(row, 1, -1)
    how = (form.bits, kept.group, form.least)
    result = write(OPERATOR, row, kept.weight, scale, zero, *how)
    if bias is not None:
        result = write(aten.add.Tensor, result, bias)
    product.replace_all_uses_with(write.view(result, *shape))


@dataclass(frozen=True)
class _Kept:
    """A weight as it is kept, (N, K), with what is multiplied by or taken away for each group of a row."""

    weight: Node
    group: int
    scale: Node | None = None
    zero: Node | None = None


def _kept(
    node: Node,
    transposed: bool,
    weights: Mapping[Node, torch.Tensor],
) -> _Kept | None:
    """Return what ``node`` is made of, if that is all by rows of a weight; None if it isn't."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.ndim != 2:
        return None
    if node in weights:
        weight = weights[node]
        fits = weight.dtype in _EXACT and not transposed
        # The kernel takes their bits apart, of which some stand for no number.
        if fits and weight.is_floating_point():
            fits = bool(weight.float().isfinite().all())
        return _Kept(node, weight.shape[1]) if fits else None
    if not isinstance(_operator(node), torch._ops.OpOverload):
        return None
    given = _named(node)
    if _is(node, _TRANSPOSED):
        turned = [dim % 2 for dim in given.get("dims", (1, 0))] == [1, 0]
        source = node.all_input_nodes[0]
        return _kept(source, transposed != turned, weights)
    if _is(node, _CASTS):
        if value.dtype not in _ROWS:
            return None
        return _kept(node.all_input_nodes[0], transposed, weights)
    if _is(node, ("aten.mul",)) and isinstance(given["other"], Node):
        found = _kept(given["self"], transposed, weights)
        factor = getattr(given["other"].meta["val"], "shape", ())
        rows, columns = value.shape[:: -1 if transposed else 1]
        by_row = (1, rows) if transposed else (rows, 1)
        if found is None or found.scale is not None or tuple(factor) != by_row:
            return None
        if value.shape != given["self"].meta["val"].shape:
            return None
        return _Kept(found.weight, columns, given["other"])
    if transposed or not _is(node, _DEQUANTIZE):
        return None
    (held, *_), (rows, columns) = node.all_input_nodes, value.shape
    if held not in weights or weights[held].dtype not in (torch.int8, torch.uint8):
        return None
    along, group = given.get("block_size", (1, columns))
    scale = given.get("scale", given.get("scales"))
    zero = given.get("zero_point", given.get("zero_points"))
    if along != 1 or given.get("axis", 0) != 0 or not isinstance(scale, Node):
        return None
    whole = math.prod(scale.meta["val"].shape) == rows * columns // group
    return _Kept(held, group, scale, zero) if whole else None


def _look_up(
    node: Node,
    packed: Mapping[Node, Packed],
    weights: Mapping[Node, torch.Tensor],
) -> None:
    """Have what looks up rows of a weight of few bits make those alone of what is kept."""
    given = _named(node)
    table, indices = given["weight"], given["indices"]
    kept = _kept(table, False, weights)
    *ahead, columns = node.meta["val"].shape
    ahead = [n if isinstance(n, int) else -1 for n in ahead]
    if kept is None or table is kept.weight or ahead.count(-1) > 1:
        return
    write = _Writer(node)
    values = write(node.target, kept.weight, indices)
    if kept.weight in packed:
        values = _apart(write, values, packed[kept.weight], ahead)
    values = write.to(values, torch.float32)
    values = write.view(values, *ahead, columns // kept.group, kept.group)
    rows = weights[kept.weight].shape[0]
    for operator, of_rows in (
        (aten.sub.Tensor, kept.zero),
        (aten.mul.Tensor, kept.scale),
    ):
        if of_rows is not None:
            found = write(node.target, write.view(of_rows, rows, -1), indices)
            found = write.view(write.to(found, torch.float32), *ahead, -1, 1)
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
    write = _Writer(product)
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
        cast.replace_input_with(value, _Writer(cast).to(value, torch.int16))
