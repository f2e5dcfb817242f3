"""Rewrite complex arithmetic as arithmetic on real and imaginary parts.

Backends and most of ExecuTorch's kernels only support real numbers. Of Fourier transforms ExecuTorch has a kernel for
those of real values: the others are rewritten into it. Its complex results are split into parts immediately, so that
no other value of the program is complex.
"""

from __future__ import annotations

import copy
import functools
import logging
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any
from unittest import mock

import torch
from executorch.exir.program._transforms import of_each_program
from executorch.exir.program.operators.calls import module_of, replace_reads
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.complex_tensor import ComplexTensor
from torch._subclasses.complex_tensor._ops.common import COMPLEX_OPS_TABLE
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

logger = logging.getLogger(__name__)

#: In the error of an operator that a tensor subclass has no kernel for.
_REFUSED = re.compile(r"Multiple dispatch failed for 'torch\._ops\.([\w.]+)'")

WHY_COMPLEX = "executorch.why_complex"
"""In ``node.meta["custom"]``: why a complex value stayed complex."""

_aten = torch.ops.aten
_Size = int | torch.SymInt


@of_each_program
def with_real_arithmetic(program: ExportedProgram) -> ExportedProgram:
    """Return a program, or each of a dict's, with complex values as pairs of real ones, if it has any and returns none.

    Complex inputs and weights are taken apart where they are read.

    Args:
        program: In ATen, as ``torch.export.export`` returned it. It is left as it is.
    """
    try:
        return _in_real_numbers(program)
    except Exception as error:  # of an operator that isn't known to ComplexTensor
        reason = str(error).strip().partition("\n")[0]
        logger.warning("complex values stay as they are: %s", reason)
        return _noted(program, reason)


class _NoRealFormError(Exception):
    """An operator has no form in real numbers; the message names its node and module."""


def why_complex(nodes: Iterable[Node]) -> str:
    """Return why complex values of ``nodes`` weren't rewritten, empty if none of them has one that wasn't."""
    reasons = (node.meta.get("custom", {}).get(WHY_COMPLEX) for node in nodes)
    return next(filter(None, reasons), "")


def _noted(program: ExportedProgram, reason: str) -> ExportedProgram:
    """Return the program with ``reason`` at each node of complex values."""
    module = copy.deepcopy(program.graph_module)
    for node in module.graph.nodes:
        if node.op == "call_function" and _is_complex(node):
            custom = node.meta.get("custom") or {}
            node.meta["custom"] = {**custom, WHY_COMPLEX: reason}
    return program._update(module, program.graph_signature)


def _in_real_numbers(program: ExportedProgram) -> ExportedProgram:
    before: set[OpOverload] = set()
    while not _returns_complex(program):
        touched = {
            node.target
            for node in program.graph.nodes
            if isinstance(node.target, OpOverload) and _is_complex(node)
        } - _READ_AT_ONCE
        if touched <= before:  # nothing is left, or nothing more can be done
            break
        # A composite of composites, as istft, is one until nothing in it is.
        composites = {*filter(_is_composite, touched)} - before
        touched = composites or touched
        program = _decomposed(program, touched)
        before |= touched
    if before:
        _take_weights_apart(program)
        _read_parts_directly(program)
    return program


def _decomposed(
    program: ExportedProgram, touched: Collection[OpOverload]
) -> ExportedProgram:
    """Return the program with ``touched`` decomposed, by parts if they are no composites.

    Raises:
        _NoRealFormError: One of them has no form in real numbers.
    """
    called: list[OpOverload] = []
    table = {
        target: _noting_calls(decomposition, target, called)
        for target, decomposition in _decompositions(touched).items()
    }
    try:
        with mock.patch.dict(COMPLEX_OPS_TABLE, _ON_COMPLEX):
            return program.run_decompositions(table)
    except Exception as error:
        # ComplexTensor refuses by name what it is called with; what else fails was called last.
        match = _REFUSED.search(str(error))
        name = match[1] if match else str(called[-1] if called else "")
        nodes = [n for n in program.graph.nodes if str(n.target) == name]
        if not nodes:  # a composite has called it
            raise
        raise _NoRealFormError(
            f"{nodes[0].target} (node {nodes[0]}) of {module_of(nodes[0])} has no form in real numbers, and "
            "delegates and host kernels only compute with those: write it with real and imaginary parts"
        ) from error


def _noting_calls(
    decomposition: Callable[..., Any], target: OpOverload, called: list[OpOverload]
) -> Callable[..., Any]:
    """Return a decomposition that notes its calls; of calls within one that is at work, only those that fail."""

    @functools.wraps(decomposition)
    def noted(*args: Any, **kwargs: Any) -> Any:
        before = [*called]
        called.append(target)
        result = decomposition(*args, **kwargs)
        if result is not NotImplemented:
            called[:] = before
        return result

    return noted


def _read_parts_directly(program: ExportedProgram) -> None:
    """Replace aliases of a part, and parts selected from a pair, by the part: each would be a copy on the host."""
    for node in program.graph.find_nodes(op="call_function", target=_aten.select.int):
        pair, dim, index = node.args
        stacked = pair.target is _aten.stack.default and pair.args[1:] == (-1,)
        if stacked and dim in (-1, pair.meta["val"].ndim - 1):
            replace_reads(node, pair.args[0][index])
    for node in program.graph.find_nodes(
        op="call_function", target=_aten._neg_view.default
    ):
        node.target = (
            _aten.neg.default
        )  # there is no kernel for a view with another sign
    for target in (_aten.alias.default, _aten.detach.default):
        for node in program.graph.find_nodes(op="call_function", target=target):
            replace_reads(node, node.args[0])
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def _take_weights_apart(program: ExportedProgram) -> None:
    """Keep complex weights and constants as their parts, instead of taking them apart in every call."""
    signature = program.graph_signature
    program._state_dict = {**program.state_dict}
    program._constants = {**program.constants}
    readers = {_aten.view_as_real.default, _aten.view_as_real_copy.default}
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for spec in signature.input_specs:
        node = nodes.get(getattr(spec.arg, "name", ""))
        constants = (
            program._state_dict if spec.kind in _OF_STATE else program._constants
        )
        weight = constants.get(spec.target or "")
        if (
            node is None
            or not isinstance(weight, Tensor)
            or not weight.is_complex()
            or {user.target for user in node.users} - readers
            or spec.target in signature.buffers_to_mutate.values()
        ):
            continue
        parts = torch.view_as_real(weight.detach().resolve_conj()).contiguous()
        if isinstance(weight, torch.nn.Parameter):
            parts = torch.nn.Parameter(parts, requires_grad=False)
        constants[str(spec.target)] = parts
        for user in [*node.users]:
            node.meta["val"] = user.meta["val"]
            user.replace_all_uses_with(node)
            program.graph.erase_node(user)
    program.graph_module.recompile()


_OF_STATE = (InputKind.PARAMETER, InputKind.BUFFER)


#: Remaining operators on complex values, whose parts are read at once.
_READ_AT_ONCE = {
    _aten._fft_r2c.default,
    _aten.view_as_real.default,
    _aten.view_as_real_copy.default,
}


def _is_complex(node: Node) -> bool:
    return any(
        isinstance(value, Tensor) and value.is_complex()
        for involved in (node, *node.all_input_nodes)
        for value in pytree.tree_leaves(involved.meta.get("val"))
    )


def _returns_complex(program: ExportedProgram) -> bool:
    return any(
        isinstance(value, Node) and value.meta["val"].is_complex()
        for value in pytree.tree_leaves(program.graph.output_node().args)
        if isinstance(value, Node) and isinstance(value.meta.get("val"), Tensor)
    )


def _decompositions(touched: Collection[OpOverload]) -> dict[Any, Any]:
    known = torch.export.default_decompositions()
    if composites := {*filter(_is_composite, touched)}:
        # one that isn't known is always decomposed
        return {target: known[target] for target in composites if target in known}
    return {target: _on_parts(target) for target in touched} | _MAKE_COMPLEX


def _is_composite(target: OpOverload) -> bool:
    key = "CompositeImplicitAutograd"
    name = target._name
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def _on_parts(target: OpOverload) -> Callable[..., Any]:
    """Return what calls an operator with the parts of complex numbers, and of complex tensors that are inputs or weights."""

    def on_parts(*args: Any, **kwargs: Any) -> Any:
        values = pytree.tree_leaves((args, kwargs))
        if not any(map(_is_interleaved, values)) and not _has_complex_number(values):
            return NotImplemented
        tensors = (value for value in values if isinstance(value, Tensor))
        like = next(tensors, torch.empty(()))
        in_parts = functools.partial(_in_parts, like=like)
        args, kwargs = pytree.tree_map(in_parts, (args, kwargs))
        return _OF_TENSORS.get(target, target)(*args, **kwargs)

    return on_parts


#: Numbers in parts are tensors.
_OF_TENSORS = {
    _aten.add.Scalar: _aten.add.Tensor,
    _aten.sub.Scalar: _aten.sub.Tensor,
    _aten.mul.Scalar: _aten.mul.Tensor,
    _aten.div.Scalar: _aten.div.Tensor,
    _aten.pow.Tensor_Scalar: _aten.pow.Tensor_Tensor,
}


def _has_complex_number(values: Sequence[Any]) -> bool:
    """Whether real tensors meet a complex number, as in ``1j * x``."""
    complexes = (isinstance(value, ComplexTensor) for value in values)
    return not any(complexes) and any(isinstance(value, complex) for value in values)


def _is_interleaved(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and not isinstance(value, ComplexTensor)
        and value.is_complex()
    )


def _in_parts(value: Any, like: Tensor) -> Any:
    if isinstance(value, complex):
        return _number_in_parts(value, like)
    if not _is_interleaved(value):
        return value
    parts = _aten.view_as_real_copy.default(value)
    return ComplexTensor(parts.select(-1, 0), parts.select(-1, 1))


def _number_in_parts(number: complex, like: Tensor) -> ComplexTensor:
    dtype = like.dtype.to_real()
    if not dtype.is_floating_point:
        dtype = torch.get_default_dtype()
    parts = (
        torch.full((), part, dtype=dtype, device=like.device)
        for part in (number.real, number.imag)
    )
    return ComplexTensor(*parts)


def _view_as_complex(x: Tensor) -> ComplexTensor:
    return ComplexTensor(x.select(-1, 0), x.select(-1, 1))


def _to_copy(x: Tensor, *, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
    if dtype is None or not dtype.is_complex or x.is_complex():
        return NotImplemented
    real = _aten._to_copy.default(x, dtype=dtype.to_real(), **kwargs)
    return ComplexTensor(real, torch.zeros_like(real))


def _full(
    size: Sequence[_Size],
    value: complex,
    *,
    dtype: torch.dtype | None = None,
    **kwargs: Any,
) -> Any:
    if not (dtype.is_complex if dtype else isinstance(value, complex)):
        return NotImplemented
    number = complex(value)
    real = (dtype or torch.get_default_dtype()).to_real()
    parts = (
        _aten.full.default(size, part, dtype=real, **kwargs)
        for part in (number.real, number.imag)
    )
    return ComplexTensor(*parts)


def _polar(length: Tensor, angle: Tensor) -> ComplexTensor:
    return ComplexTensor(length * angle.cos(), length * angle.sin())


def _half_spectrum(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the transform of real values along one dimension, without what follows by symmetry, by parts.

    That, along the last dimension, is all that ExecuTorch's kernel has.
    """
    last = x.transpose(dim, -1).contiguous()
    transformed = _aten._fft_r2c.default(last, [last.ndim - 1], 0, True)
    parts = _aten.view_as_real_copy.default(transformed)
    return parts.select(-1, 0).transpose(dim, -1), parts.select(-1, 1).transpose(
        dim, -1
    )


def _mirrored(
    real: Tensor, imaginary: Tensor, dim: int, size: _Size
) -> tuple[Tensor, Tensor]:
    """Return a whole spectrum of ``size`` from its first half: the second one is the conjugate."""
    rest = size - size // 2 - 1
    ends = [part.narrow(dim, 1, rest).flip(dim) for part in (real, imaginary)]
    return torch.cat([real, ends[0]], dim), torch.cat([imaginary, -ends[1]], dim)


def _scale(shape: Sequence[_Size], dim: Sequence[int], normalization: int) -> Any:
    count: Any = math.prod(shape[axis] for axis in dim)
    return {0: 1, 1: count**0.5, 2: count}[normalization]


def _along(z: ComplexTensor, dims: Sequence[int], forward: bool) -> ComplexTensor:
    """Transform complex values, not normalized, along one dimension after the other."""
    for dim in dims:
        both = torch.stack([z.re, z.im])
        half = _half_spectrum(both, dim % z.re.ndim + 1)
        real, imaginary = _mirrored(*half, dim % z.re.ndim + 1, z.re.shape[dim])
        if forward:
            z = ComplexTensor(real[0] - imaginary[1], imaginary[0] + real[1])
        else:
            z = ComplexTensor(real[0] + imaginary[1], real[1] - imaginary[0])
    return z


def _scaled(z: ComplexTensor, scale: Any) -> ComplexTensor:
    return ComplexTensor(z.re / scale, z.im / scale)


def _fft_r2c(x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    if (normalization, onesided) == (0, True) and [*dim] == [x.ndim - 1]:
        return NotImplemented  # it is the kernel's
    *others, last = (axis % x.ndim for axis in dim)
    real, imaginary = _half_spectrum(x, last)
    if not onesided:
        real, imaginary = _mirrored(real, imaginary, last, x.shape[last])
    transformed = _along(ComplexTensor(real, imaginary), others, True)
    return _scaled(transformed, _scale(x.shape, dim, normalization))


def _fft_c2c(
    z: ComplexTensor, dim: Sequence[int], normalization: int, forward: bool
) -> ComplexTensor:
    scale = _scale(z.re.shape, dim, normalization)
    return _scaled(_along(z, dim, forward), scale)


def _fft_c2r(
    z: ComplexTensor, dim: Sequence[int], normalization: int, size: _Size
) -> Tensor:
    *others, last = (axis % z.re.ndim for axis in dim)
    z = _along(z, others, False)
    half = size // 2 + 1
    real, imaginary = z.re.narrow(last, 0, half), z.im.narrow(last, 0, half)
    whole = ComplexTensor(*_mirrored(real, imaginary, last, size))
    z = _along(whole, [last], False)
    return z.re / _scale(z.re.shape, dim, normalization)


def _abs(z: ComplexTensor) -> Tensor:
    return (z.re.square() + z.im.square()).sqrt()


def _of_tensors(
    compute: Callable[..., Any], *kinds: type[complex]
) -> Callable[..., Any]:
    """Wrap ``compute`` so that complex scalars among its arguments are tensors that the graph creates.

    ComplexTensor turns scalars into constants, which ``run_decompositions`` loses before torch 2.14.
    """

    def computed(*args: Any, **kwargs: Any) -> Any:
        like = next(arg for arg in args if isinstance(arg, Tensor))

        def as_tensor(value: Any) -> Any:
            if not isinstance(value, kinds):
                return value
            return _number_in_parts(complex(value), like)

        return compute(*map(as_tensor, args), **kwargs)

    return computed


def _by_parts(operator: Any) -> Callable[..., Any]:
    """Return what moves complex numbers by moving real and imaginary parts; real ones that join them have none."""

    def moved(*args: Any, **kwargs: Any) -> ComplexTensor:
        def real(value: Any) -> Any:
            return value.re if isinstance(value, ComplexTensor) else value

        def imaginary(value: Any) -> Any:
            if isinstance(value, ComplexTensor):
                return value.im
            joins = isinstance(value, Tensor) and value.is_floating_point()
            return torch.zeros_like(value) if joins else value

        parts = (
            operator(*pytree.tree_map(part, args), **pytree.tree_map(part, kwargs))
            for part in (real, imaginary)
        )
        return ComplexTensor(*parts)

    return moved


def _logarithm(base: float) -> Callable[[ComplexTensor], ComplexTensor]:
    return lambda z: _scaled(_aten.log(z), math.log(base))


_MAKE_COMPLEX = {
    _aten.view_as_complex.default: _view_as_complex,
    _aten.complex.default: ComplexTensor,
    _aten.polar.default: _polar,
    _aten.full.default: _full,
    _aten._to_copy.default: _to_copy,
    _aten._fft_r2c.default: _fft_r2c,
}
#: Operators that ComplexTensor lacks.
_MOVES = (
    *(_aten.roll, _aten.unfold, _aten.tril, _aten.triu, _aten.rot90),
    *(_aten.index_put, _aten.scatter, _aten.as_strided, _aten.reflection_pad1d),
    *(_aten.reflection_pad2d, _aten.replication_pad1d, _aten.replication_pad2d),
    *(_aten.linalg_diagonal, _aten.movedim, _aten.repeat_interleave),
)
_ON_COMPLEX = {
    _aten._fft_c2c: _fft_c2c,
    _aten._fft_c2r: _fft_c2r,
    _aten.abs: _abs,
    **{
        operator: _of_tensors(COMPLEX_OPS_TABLE[operator], int, float, complex)
        for operator in (_aten.add, _aten.sub, _aten.mul, _aten.pow)
    },
    _aten.div: _of_tensors(COMPLEX_OPS_TABLE[_aten.div], complex),
    _aten.log2: _logarithm(2),
    _aten.log10: _logarithm(10),
    **{operator: _by_parts(operator) for operator in _MOVES},
    _aten.view_as_real_copy: lambda z: torch.stack([z.re, z.im], -1),
}
