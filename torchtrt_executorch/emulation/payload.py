"""The payload of an emulated engine: an ``ExportedProgram`` behind a magic of its own.

Needs torch alone, so that a ``.pte`` can be run where torch_tensorrt isn't installed.

Loading one deserializes a PyTorch program: its operators are looked up by name and its symbolic
shapes are parsed by sympy. That is safe for what this process wrote, and as trustworthy as its
author for anything else: who reads payloads from files has to be asked for it
(:func:`torchtrt_executorch.emulation.emulation_enabled`).
"""

from __future__ import annotations

import io
import threading
from typing import Sequence

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.export.passes import move_to_device_pass

#: Readable in a hex dump; no TensorRT engine starts so.
MAGIC = b"EMULATED-TRT-ENGINE-1\0"

Buffer = bytes | bytearray | memoryview


def is_emulated(engine: Buffer) -> bool:
    """Whether ``engine`` is the payload of an emulated engine, judged by its first bytes."""
    return bytes(memoryview(engine)[: len(MAGIC)]) == MAGIC


def dump(program: ExportedProgram) -> bytes:
    """Return the payload that holds ``program``; equal programs give equal bytes."""
    archive = io.BytesIO()
    torch.export.save(program, archive)
    return MAGIC + archive.getbuffer()


def load(engine: Buffer) -> EmulatedProgram:
    """Return the program in the payload ``engine``.

    Raises:
        ValueError: ``engine`` is not the payload of an emulated engine, or is damaged.
    """
    if not is_emulated(engine):
        start = bytes(memoryview(engine)[: len(MAGIC)])
        raise ValueError(f"not an emulated engine: it starts with {start!r}")
    try:
        with unset_fake_temporarily():  # the weights are real, whoever traces around us
            program = torch.export.load(io.BytesIO(memoryview(engine)[len(MAGIC) :]))
    except Exception as error:
        raise ValueError(f"damaged emulated engine: {error}") from error
    return EmulatedProgram(program)


class EmulatedProgram:
    """An emulated engine, ready to run.

    Attributes:
        inputs: Per input binding, by name, its fake tensor or symbolic int.
        outputs: Per output binding, by name, its fake tensor.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._device = torch.device("cpu")
        self._running = threading.Lock()
        specs = program.graph_signature.input_specs
        placeholders = program.graph.find_nodes(op="placeholder")
        self._weights = [
            spec.target for spec in specs if spec.kind is not InputKind.USER_INPUT
        ]
        given = placeholders[len(self._weights) :]
        returned = program.graph.output_node().args[0]
        self.inputs = {node.name: node.meta["val"] for node in given}
        self.outputs = {
            f"output{index}": node.meta["val"] for index, node in enumerate(returned)
        }

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run on ``inputs``, one tensor per binding; return new tensors, one per output.

        It runs where the first input lives. A symbolic size arrives as a tensor of one element,
        as engines take it. Like an engine it checks its inputs.

        Raises:
            ValueError: The number of inputs, or the dtype, rank or a fixed size of one, isn't the
                program's.
        """
        if len(inputs) != len(self.inputs):
            raise ValueError(
                f"the engine takes {len(self.inputs)} inputs, {len(inputs)} given"
            )
        with self._running, torch.no_grad():
            self._move(inputs[0].device if inputs else self._device)
            values = [
                self._value(name, tensor)
                for name, tensor in zip(self.inputs, inputs, strict=True)
            ]
            held = {**self._program.state_dict, **self._program.constants}
            weights = [held[name] for name in self._weights]
            outputs = self._program.graph_module(*weights, *values)
        # An engine returns dense memory, never that of its inputs or weights.
        dense = torch.contiguous_format
        return [output.clone(memory_format=dense) for output in outputs]

    def _move(self, device: torch.device) -> None:
        if device != self._device:
            move_to_device_pass(self._program, str(device))
            self._device = device

    def _value(self, name: str, tensor: torch.Tensor) -> torch.Tensor | int:
        expected = self.inputs[name]
        if not isinstance(expected, torch.Tensor):
            return int(tensor.item())
        fits = tensor.dtype == expected.dtype and tensor.dim() == expected.dim()
        if not fits or not all(
            isinstance(held, torch.SymInt) or size == held
            for size, held in zip(tensor.shape, expected.shape, strict=True)
        ):
            raise ValueError(
                f"the engine takes {expected.dtype} of shape {[*expected.shape]} as input {name}, "
                f"{tensor.dtype} of shape {[*tensor.shape]} given"
            )
        return tensor.to(self._device)
