"""Deduplicate state under several names: modules called twice, tied buffers.

Where such state is written, PyTorch can't decompose the program: its AOTAutograd makes one input of
the several, and ``run_decompositions`` ends in "expected compiled_fn to be GraphModule".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from itertools import combinations
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec
from torch.fx import GraphModule
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch_tensorrt.dynamo.graphs.copies import copied_graph
from torch_tensorrt.dynamo.state.mutations import writes_in_place

_STATE = (InputKind.BUFFER, InputKind.PARAMETER, InputKind.CONSTANT_TENSOR)


def made_traceable(program: ExportedProgram) -> ExportedProgram:
    """Return ``program`` as PyTorch can trace it: where it writes, its state has one name each."""
    return with_state_named_once(program) if writes_in_place(program) else program


def with_state_named_once(program: ExportedProgram) -> ExportedProgram:
    """Return ``program`` with each of its tensors only under the first of its names."""
    firsts: dict[Hashable, InputSpec] = {}
    repeats: dict[str, InputSpec] = {}
    for spec, tensor in _held(program):
        first = firsts.setdefault(_place(tensor), spec)
        if first is not spec:
            repeats[spec.arg.name] = first
    return _without(program, repeats) if repeats else program


def overlapping_state(program: ExportedProgram) -> tuple[str, str] | None:
    """Return the names of two tensors of ``program`` that overlap in memory, if there are any."""
    pairs = combinations(_held(program), 2)
    return next(
        ((str(a.target), str(b.target)) for (a, x), (b, y) in pairs if _overlap(x, y)),
        None,
    )


def with_traceable_state(compile: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that compiles a program, its first argument, so that PyTorch can trace the program."""

    @functools.wraps(compile)
    def compile_traceable(exported_program: Any, *args: Any, **kwargs: Any) -> Any:
        program = made_traceable(exported_program)
        try:
            return compile(program, *args, **kwargs)
        except AssertionError as error:
            if (pair := overlapping_state(program)) is None:
                raise
            raise ValueError(
                f"{pair[0]} and {pair[1]} are different views of the same memory, and the program "
                "writes in place, which PyTorch can't trace: register one of them, and make the "
                "other from it in forward"
            ) from error

    return compile_traceable


def _held(program: ExportedProgram) -> list[tuple[InputSpec, Tensor]]:
    tensors = {**program.constants, **program.state_dict}
    return [
        (spec, tensor)
        for spec in program.graph_signature.input_specs
        if spec.kind in _STATE and _has_memory(tensor := tensors.get(str(spec.target)))
    ]


def _has_memory(tensor: Any) -> TypeGuard[Tensor]:
    return (
        isinstance(tensor, Tensor)
        and tensor.layout == torch.strided
        and tensor.numel() > 0
        and not is_traceable_wrapper_subclass(tensor)
    )


def _place(tensor: Tensor) -> Hashable:
    return (
        tensor.untyped_storage()._cdata,
        tensor.storage_offset(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
    )


def _overlap(one: Tensor, other: Tensor) -> bool:
    (start, end), (begin, stop) = map(_bytes, (one, other))
    shared = one.untyped_storage()._cdata == other.untyped_storage()._cdata
    return shared and start < stop and begin < end


def _bytes(tensor: Tensor) -> tuple[int, int]:
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum(int(n - 1) * int(stride) for n, stride in sizes)
    start, size = int(tensor.storage_offset()), tensor.element_size()
    return start * size, (start + last + 1) * size


def _without(
    program: ExportedProgram, repeats: dict[str, InputSpec]
) -> ExportedProgram:
    graph, _ = copied_graph(program.graph)
    inputs = {node.name: node for node in graph.find_nodes(op="placeholder")}
    for name, first in repeats.items():
        inputs[name].replace_all_uses_with(inputs[first.arg.name])
        graph.erase_node(inputs[name])
    signature = program.graph_signature
    specs = [s for s in signature.input_specs if s.arg.name not in repeats]
    targets = {str(spec.target) for spec in specs}

    def kept(tensors: dict[str, Any]) -> dict[str, Any]:
        used = {str(s.target) for s in signature.input_specs} - targets
        return {name: tensor for name, tensor in tensors.items() if name not in used}

    return program._update(
        GraphModule(program.graph_module, graph),
        ExportGraphSignature(specs, signature.output_specs),
        state_dict=kept(program.state_dict),
        constants=kept(program.constants),
    )
