"""Which kernels of ExecuTorch's are used in the place of torch's, and when that is quicker.

A kernel is taken if it refuses by itself what it can't work on, whatever a damaged file hands to it:
those that index by the elements of a tensor, that divide integers, or that end the process are left
out. What a kernel doesn't check is the kind of its arguments, and that is known before it runs.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Mapping, Sequence

import torch
from executorch.exir import schema

from torchtrt_executorch.runtime.delegates import Payload, is_executorch_s
from torchtrt_executorch.runtime.kernels import Kernel, TorchKernel, is_registered
from torchtrt_executorch.runtime.prims import Prim, Result
from torchtrt_executorch.runtime.segments.carving import Call
from torchtrt_executorch.runtime.values import Boxed, Value

VIEW = "executorch_prim::et_view.default"

#: The largest tensor, in elements, that a kernel of ExecuTorch's is quicker on. One of torch's takes 4
#: to 6 us here, however small. Theirs take 0.2 us, and then, on an Intel Xeon: 0.1 to 0.7 ns an element
#: where they are vectorized or copy memory (addition 3.8 against 6.5 us at 4096 elements, layer norm 8
#: against 17), 4 to 6 ns where not (sine 2.8 against 5.0 us at 256, 6.7 against 5.7 at 1024; transpose
#: 6.9 against 9.7 at 1024), and 13 to 20 ns where there is an exponential in double precision as well
#: (softmax 3.4 against 7.2 us at 64, 5.8 against 5.6 at 256; tanh 6.5 against 4.7 there).
_QUICK, SMALL, _SLOWEST = 4096, 512, 128
#: The same for multiply-adds: 4096 take 2.0 against 5.5 us and 32,768 take 2.7 against 7.8, but in
#: ``addmm``, which isn't vectorized, 1.8 ns each.
_MULTIPLY_ADDS = {
    "aten::mm.out": 32768,
    "aten::bmm.out": 32768,
    "aten::addmm.out": 2048,
}

_KERNELS = {
    _QUICK: """
        _to_copy.out add.out add.Scalar_out alias_copy.out any.all_out any.out cat.out clone.out
        copy.out copy_ detach_copy.out div.out div.Scalar_out fill.Scalar_out full.out full_like.out
        lift_fresh_copy.out mean.out mul.out mul.Scalar_out native_layer_norm.out ones.out relu.out
        scalar_tensor.out select_copy.int_out slice_copy.Tensor_out split_copy.Tensor_out
        split_with_sizes_copy.out squeeze_copy.dim_out squeeze_copy.dims_out stack.out sub.out
        sub.Scalar_out sum.IntList_out unbind_copy.int_out unsqueeze_copy.out var.correction_out
        view_copy.out zeros.out
    """,
    SMALL: """
        abs.out amax.out amin.out bitwise_and.Tensor_out bitwise_and.Scalar_out bitwise_not.out
        bitwise_or.Tensor_out bitwise_or.Scalar_out bitwise_xor.Tensor_out bitwise_xor.Scalar_out
        ceil.out clamp.out clamp.Tensor_out constant_pad_nd.out cos.out cumsum.out elu.out
        eq.Scalar_out eq.Tensor_out exp.out expand_copy.out flip.out floor.out ge.Scalar_out
        ge.Tensor_out gelu.out gt.Scalar_out gt.Tensor_out hardtanh.out isinf.out isnan.out
        le.Scalar_out le.Tensor_out leaky_relu.out log.out logical_and.out logical_not.out
        logical_or.out logical_xor.out lt.Scalar_out lt.Tensor_out masked_fill.Scalar_out maximum.out
        minimum.out ne.Scalar_out ne.Tensor_out neg.out permute_copy.out pow.Tensor_Scalar_out
        pow.Tensor_Tensor_out reciprocal.out repeat.out round.out rsqrt.out rsub.Scalar_out
        select_scatter.out sigmoid.out sin.out slice_scatter.out sqrt.out t_copy.out
        transpose_copy.int_out tril.out trunc.out where.self_out
    """,
    _SLOWEST: """
        _log_softmax.out _softmax.out acos.out acosh.out asin.out asinh.out atan.out atanh.out
        cosh.out erf.out expm1.out log10.out log1p.out log2.out sinh.out tan.out tanh.out
    """,
}
_ELEMENTS = {
    f"aten::{name}": most for most, names in _KERNELS.items() for name in names.split()
} | {
    "dim_order_ops::_clone_dim_order.out": SMALL,
    "dim_order_ops::_to_dim_order_copy.out": SMALL,
}
#: Divisions by zero of integers end the process.
_DIVISIONS = ("aten::div.out", "aten::div.Scalar_out")
#: The argument whose last dimension is summed over, and how many its factors and result have. ExecuTorch's
#: kernels end the process where a result has fewer.
_FACTORS = {"aten::mm.out": (0, 2), "aten::bmm.out": (0, 3), "aten::addmm.out": (1, 2)}

#: On numbers of these kinds ExecuTorch's and Python's arithmetic agree, and make a number of that kind.
_ARITHMETIC = {
    f"executorch_prim::{name}.Scalar": (
        bool if name in ("eq", "gt", "lt", "ge", "le") else int
    )
    for name in ("add", "sub", "mul", "eq", "gt", "lt", "ge", "le")
} | {"aten::sym_size.int": int, "aten::sym_numel": int}

#: A tensor of another kind, or of more dimensions, is left to torch.
_DTYPES = {torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool}  # fmt: skip
_MOST_DIMENSIONS = 8
_MOST_ITEMS = 64

_TAGS: dict[str, type] = {
    "Tensor": schema.Tensor,
    "int": schema.Int,
    "ScalarType": schema.Int,
    "MemoryFormat": schema.Int,
    "Layout": schema.Int,
    "float": schema.Double,
    "bool": schema.Bool,
    "str": schema.String,
    "List[int]": schema.IntList,
    "List[bool]": schema.BoolList,
    "List[float]": schema.DoubleList,
    "List[Tensor]": schema.TensorList,
    "List[Optional[Tensor]]": schema.OptionalTensorList,
}
_NUMBERS = (schema.Int, schema.Double, schema.Bool)


def offer(kernel: Kernel, args: Sequence[Value], vals: Mapping[int, Any]) -> Call | str:
    """The call of a kernel for ExecuTorch's runtime, or why it has to stay here.

    ``vals`` has what the file says of each value, by ``id``.
    """
    name = kernel.name
    if name not in _operators():
        return "ExecuTorch's Python package has no kernel for it"
    for value in args:
        for tensor in value.tensors():
            reason = _unfit(tensor)
            if reason is not None:
                return reason
        if type(value.data) is Boxed and len(value.data.items) > _MOST_ITEMS:
            return f"{value.name} is a list of {len(value.data.items)}"
    if isinstance(kernel, Prim):
        return _prim(name, kernel, args)
    if not isinstance(kernel, TorchKernel) or is_registered(name):
        return "its kernel is the user's"
    return _torch(name, kernel, args, vals)


def offer_delegate(payload: Payload, args: Sequence[Value], inputs: int) -> Call | str:
    """The call of a delegate, of which the first ``inputs`` of ``args`` are read, or why not."""
    from executorch.runtime import Runtime

    backend = payload.backend_id
    if not is_executorch_s(backend):
        return "it isn't ExecuTorch's"
    if not Runtime.get().backend_registry.is_available(backend):
        return "ExecuTorch's Python package doesn't have its backend"
    if any(v.layout is not None and v.device.type != "cpu" for v in args):
        return "it is given tensors on a device"
    if any(v.layout is None for v in args) or inputs == len(args):
        return "it is given or returns something else than tensors"
    return Call(payload.name, args, args[:inputs], args[inputs:], payload)


@lru_cache(maxsize=1)
def _operators() -> frozenset[str]:
    from executorch.runtime import Runtime

    return frozenset(Runtime.get().operator_registry.operator_names)


def _unfit(tensor: Value) -> str | None:
    layout = tensor.layout
    assert layout is not None
    if tensor.device.type != "cpu" or layout.device.type != "cpu":
        return f"{tensor.name} lives on {layout.device}"
    if layout.dtype not in _DTYPES:
        return f"{tensor.name} is {layout.dtype}"
    if layout.dynamism is schema.TensorShapeDynamism.DYNAMIC_UNBOUND:
        return f"{tensor.name} has no largest shape"
    if layout.dim_order != tuple(range(len(layout.sizes))):
        return f"{tensor.name} has its dimensions in another order"
    if len(layout.sizes) > _MOST_DIMENSIONS or not math.prod(layout.sizes):
        return f"{tensor.name} has shape {list(layout.sizes)}"
    return None


def _prim(name: str, kernel: Prim, args: Sequence[Value]) -> Call | str:
    if len(args) != kernel.arity:
        return "it has other arguments than it takes"
    if name == VIEW:
        return _view(name, args)
    if name in _ARITHMETIC:
        *operands, result = args
        if result.layout is not None or type(result.data) is not _ARITHMETIC[name]:
            return f"{result.name} is {result.data!r}"
        if name.startswith("aten::") and operands[0].layout is None:
            return f"{operands[0].name} is no tensor"
        for value in operands[1 if name.startswith("aten::") else 0 :]:
            if type(value.data) is not int:
                return f"{value.name} is {value.data!r}"
        return Call(name, args, operands, [result])
    if name in _ELEMENTS and kernel.result is Result.WRITTEN:
        source, *rest, out, returned = args
        named = [type(value.data) for value in rest]
        plain = source.layout and out.layout and returned is out
        order = rest[-1].data
        if (
            not plain
            or named[0] is not bool
            or not (order is None or _integers(rest[-1]))
        ):
            return "it has other arguments than it takes"
        return _weighed(name, Call(name, args, args[:-2], [out]))
    return "no kernel of ExecuTorch's is used for it"


def _view(name: str, args: Sequence[Value]) -> Call | str:
    """It changes no memory if its result is planned where its source is."""
    source, size, out = args
    if source.layout is None or out.layout is None or not _integers(size):
        return "it has other arguments than it takes"
    if not source.planned or not out.planned:
        return f"{out.name} is where its source is"
    if source.tensor.data_ptr() != out.tensor.data_ptr():
        return f"{out.name} is planned elsewhere than {source.name}"
    return Call(name, args, [source, size], [out])


def _integers(value: Value) -> bool:
    data = value.data
    if type(data) is not Boxed:
        return False
    return all(item is not None and type(item.data) is int for item in data.items)


def _torch(
    name: str, kernel: TorchKernel, args: Sequence[Value], vals: Mapping[int, Any]
) -> Call | str:
    if name not in _ELEMENTS and name not in _FACTORS:
        return "no kernel of ExecuTorch's is used for it"
    declared = kernel.arguments
    if len(args) != len(declared) + 1 or kernel.replaces(args):
        return "it has other arguments than it takes"
    for value, kind in zip(args, declared, strict=False):
        if not _is(vals[id(value)], kind) or (
            isinstance(vals[id(value)], schema.IntList) and not _integers(value)
        ):
            return f"{value.name} is no {kind}"
    changed = kernel.writes(args)
    if (
        changed is None
    ):  # in place: what it changes is read as well, and keeps its shape
        if not all(v.layout and v.layout.static for v in args[0].tensors()):
            return f"{args[0].name} changes its shape"
        return _weighed(name, Call(name, args, kernel.reads(args), args[:1]))
    if any(value.constant for value in changed):
        return "it writes to a constant"
    if name in _DIVISIONS and any(
        value.layout and not value.layout.dtype.is_floating_point for value in changed
    ):
        return "it divides integers"
    return _weighed(name, Call(name, args, kernel.reads(args), changed))


def _is(val: Any, declared: str) -> bool:
    if declared.startswith("Optional["):
        if isinstance(val, schema.Null):
            return True
        declared = declared[len("Optional[") : -1]
    if declared == "number":
        return isinstance(val, _NUMBERS)
    return declared in _TAGS and isinstance(val, _TAGS[declared])


def _weighed(name: str, call: Call) -> Call | str:
    """``call`` if it is little work. Portable kernels do one element after the other."""
    sizes = [t.layout.sizes for v in call.args for t in v.tensors() if t.layout]
    elements = max(map(math.prod, sizes), default=0)
    if name not in _FACTORS:
        most = _ELEMENTS[name]
        return call if elements <= most else f"{elements} elements are more than {most}"
    place, rank = _FACTORS[name]
    factors, result = call.args[place : place + 2], call.writes[0]
    shapes = [value.layout.sizes for value in (*factors, result) if value.layout]
    if any(len(shape) != rank for shape in shapes):
        return f"its factors and its result haven't {rank} dimensions each"
    work, most = math.prod(shapes[2]) * shapes[0][-1], _MULTIPLY_ADDS[name]
    return call if work <= most else f"{work} multiply-adds are more than {most}"
