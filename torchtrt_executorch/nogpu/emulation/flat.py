"""Serialize a program: a ``torch.export`` archive without weights, and the weights as raw bytes.

PyTorch's archives hold a copy of every weight, and reading one makes another: of a large model that is
most of the time and memory that an emulated engine takes. Here the weights are inputs of the archived
program, written once, and those of a program that is read back are views of the bytes.
"""

from __future__ import annotations

import functools
import json
import struct
import zlib
from typing import Any, Iterator, Mapping

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec
from torch.utils import _pytree as pytree

from torchtrt_executorch.lifting import copied_graph, tensor_of
from torchtrt_executorch.nogpu.stand_ins import Buffer
from torchtrt_executorch.nogpu.stand_ins.archive import read_archive, write_archive
from torchtrt_executorch.nogpu.stand_ins.plain import check_plain

#: Bytes of the archive, of the table and of the weights; the CRC-32 of table and weights.
_HEADER = struct.Struct("<QQQL4x")
_ALIGNMENT = 64
_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def write(
    program: ExportedProgram,
    prefix: bytes = b"",
    settings: Mapping[str, Any] | None = None,
) -> bytes:
    """Return ``prefix`` and the bytes of ``program``; equal programs give equal bytes.

    Args:
        program: On the CPU. Its signature has what isn't the user's before the user's inputs.
        settings: Settings for :func:`read_settings`, as JSON values.
    """
    specs = [*_weights(program)]
    tensors = {**program.constants, **program.state_dict}
    start, rows = 0, []
    parts: list[Buffer] = []
    for spec in specs:
        tensor = tensors[str(spec.target)].detach()
        data = tensor.contiguous().reshape(-1).view(torch.uint8)
        dtype = str(tensor.dtype).removeprefix("torch.")
        rows.append((spec.kind.name, spec.target, dtype, [*tensor.shape], start))
        padding = -data.numel() % _ALIGNMENT
        parts += [memoryview(data.numpy()), bytes(padding)]  # type: ignore[arg-type]
        start += data.numel() + padding
    about = {"settings": dict(settings or {}), "tensors": rows}
    table = json.dumps(about, sort_keys=True).encode()
    archive = write_archive(_with_inputs(program, specs))
    header = _HEADER.pack(len(archive), len(table), start, _checksum(table, *parts))
    return b"".join((prefix, header, archive, table, *parts))


def read(data: memoryview, plain: bool = False) -> ExportedProgram:
    """Return the program that :func:`write` wrote, without the prefix; its weights are read-only.

    Args:
        data: The written bytes.
        plain: Load nothing but what :func:`~torchtrt_executorch.nogpu.stand_ins.plain.check_plain` allows.

    Raises:
        Exception: The bytes are damaged, or it can't be loaded here; as
            :func:`~torchtrt_executorch.nogpu.stand_ins.archive.read_archive` has it, or of any other kind.
    """
    archive, about, weights = _parts(data)
    if plain:
        check_plain(archive)
    program = read_archive(archive)
    rows = about["tensors"]
    specs = list(program.graph_signature.input_specs)
    inputs = [i for i, s in enumerate(specs) if s.kind is InputKind.USER_INPUT]
    state, constants = dict(program.state_dict), dict(program.constants)
    for index, (name, target, dtype, shape, start) in zip(inputs, rows, strict=False):
        kind = InputKind[name]
        tensor: Tensor = _view(weights, getattr(torch, dtype), shape, start)
        if kind is InputKind.PARAMETER:
            tensor = torch.nn.Parameter(tensor, requires_grad=False)
        (constants if kind is InputKind.CONSTANT_TENSOR else state)[target] = tensor
        persistent = True if kind is InputKind.BUFFER else None
        specs[index] = InputSpec(kind, specs[index].arg, target, persistent)
    return _program(program, specs, state, constants)


def read_settings(data: memoryview) -> dict[str, Any]:
    """Return the settings that :func:`write` was given, without loading the program.

    Raises:
        ValueError: The bytes are damaged.
    """
    _, about, _ = _parts(data)
    return dict(about["settings"])


def _parts(data: memoryview) -> tuple[memoryview, dict[str, Any], memoryview]:
    """Return the archive, what the table says, and the weights."""
    *sizes, checksum = _HEADER.unpack_from(data)
    if len(data) != _HEADER.size + sum(sizes):
        raise ValueError("it is not as long as it says")
    start, parts = _HEADER.size, []
    for size in sizes:
        parts.append(data[start : start + size])
        start += size
    archive, table, weights = parts
    if _checksum(table, weights) != checksum:
        raise ValueError(
            "its weights have another checksum than they were written with"
        )
    return archive, json.loads(bytes(table)), weights


def _checksum(*parts: Buffer) -> int:
    return functools.reduce(lambda value, part: zlib.crc32(part, value), parts, 0)


def _weights(program: ExportedProgram) -> Iterator[InputSpec]:
    """Yield the weights to write: plain tensors that the program doesn't mutate."""
    tensors = {**program.constants, **program.state_dict}
    written = {spec.target for spec in program.graph_signature.output_specs}
    for spec in program.graph_signature.input_specs:
        tensor = tensors.get(str(spec.target))
        if spec.kind in _WEIGHTS and spec.target not in written and _is_plain(tensor):
            yield spec


def _is_plain(tensor: Any) -> bool:
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and tensor.numel() > 0
    )


def _with_inputs(program: ExportedProgram, weights: list[InputSpec]) -> ExportedProgram:
    names_of_weights = {spec.arg.name for spec in weights}
    targets = {spec.target for spec in weights}
    specs = [
        (
            InputSpec(InputKind.USER_INPUT, spec.arg, None)
            if spec.arg.name in names_of_weights
            else spec
        )
        for spec in program.graph_signature.input_specs
    ]
    state, constants = (
        {name: tensor for name, tensor in tensors.items() if name not in targets}
        for tensors in (program.state_dict, program.constants)
    )
    return _program(program, specs, state, constants)


def _program(
    program: ExportedProgram,
    specs: list[InputSpec],
    state: dict[str, Any],
    constants: dict[str, Any],
) -> ExportedProgram:
    graph, _ = copied_graph(program.graph)
    inputs = sum(spec.kind is InputKind.USER_INPUT for spec in specs)
    call = program.module_call_graph[0].signature
    assert call is not None  # the entry of the whole program has one
    in_spec = pytree.tree_structure(((0,) * inputs, {}))
    signature = ModuleCallSignature([], [], in_spec, call.out_spec)
    outputs = program.graph_signature.output_specs
    return ExportedProgram(
        root=program.graph_module,
        graph=graph,
        graph_signature=ExportGraphSignature(specs, outputs),
        state_dict=state,
        range_constraints=program.range_constraints,
        module_call_graph=[ModuleCallEntry("", signature)],
        constants=constants,
        verifiers=program.verifiers,
    )


def _view(data: memoryview, dtype: torch.dtype, shape: list[int], start: int) -> Tensor:
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    return tensor_of(data[start : start + nbytes]).view(dtype).reshape(shape)
