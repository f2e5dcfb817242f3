"""Make an ``ExportedProgram`` of a compiled module."""

from __future__ import annotations

from inspect import signature
from typing import Any, Mapping, Sequence

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils import _pytree as pytree
from torch_tensorrt._Input import Input
from torch_tensorrt.dynamo._defaults import default_device
from torch_tensorrt.dynamo._tracer import get_dynamic_shapes
from torch_tensorrt.dynamo.graphs.lifting import lifted_program
from torch_tensorrt.dynamo.utils import get_torch_tensor, to_torch_device
from torch_tensorrt.executorch._release import named_dims, with_parts_inlined


def exported(
    module: GraphModule,
    arg_inputs: Sequence[Any] | None,
    kwarg_inputs: Mapping[str, Any] | None,
    dynamic_shapes: Any | None,
    retrace: bool,
) -> ExportedProgram:
    """Return a compiled module as a program, its engines called by ``execute_engine``.

    Args:
        module: As ``torch_tensorrt.compile(..., ir="dynamo")`` returns it.
        arg_inputs: Tensors or ``Input``, nested in tuples, lists and dicts; or a single one.
        kwarg_inputs: Likewise, by keyword.
        dynamic_shapes: As ``torch.export`` takes them, which has to trace for that. If None,
            those that the module was compiled for, or with ``retrace`` those of the ``Input``s.
        retrace: Trace it on the inputs, rather than keep its graph.

    Raises:
        ValueError: Tracing without inputs; or dynamic ``Input``s beside tensors, without
            ``dynamic_shapes``.
    """
    if not retrace and dynamic_shapes is None:
        return lifted_program(with_parts_inlined(module))
    if isinstance(arg_inputs, (torch.Tensor, Input)):
        arg_inputs = (arg_inputs,)
    inputs = (tuple(arg_inputs or ()), dict(kwarg_inputs or {}))
    if not any(inputs):
        raise ValueError(
            "retrace=True and dynamic_shapes need arg_inputs or kwarg_inputs to trace with"
        )
    if dynamic_shapes is None:
        dynamic_shapes = _shapes_of_inputs(module, *inputs)
    device = to_torch_device(default_device())
    args, kwargs = pytree.tree_map(lambda leaf: _tensor(leaf, device), inputs)
    return torch.export.export(
        with_parts_inlined(module),
        args=args,
        kwargs=kwargs,
        dynamic_shapes=dynamic_shapes,
    )


def _shapes_of_inputs(
    module: GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any] | None:
    leaves = pytree.tree_leaves((args, kwargs))
    dynamic = [leaf for leaf in leaves if _is_dynamic(leaf)]
    if not dynamic:
        return None
    if not all(isinstance(leaf, Input) for leaf in leaves):
        raise ValueError(
            f"{len(dynamic)} of the inputs are dynamic torch_tensorrt.Inputs and others are "
            "tensors: pass dynamic_shapes, to say which sizes belong together"
        )
    bound = signature(module.forward).bind(*args, **kwargs).arguments
    dims = named_dims(args, kwargs)
    return pytree.tree_map(lambda leaf: get_dynamic_shapes(leaf, *dims), dict(bound))


def _is_dynamic(leaf: Any) -> bool:
    return isinstance(leaf, Input) and leaf.shape_mode == Input._ShapeMode.DYNAMIC


def _tensor(leaf: Any, device: torch.device) -> Any:
    if isinstance(leaf, Input):
        return get_torch_tensor(leaf, device)
    return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf
