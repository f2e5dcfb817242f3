"""Run a partition's program in place of the engine or library that was built from it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import Any, Sequence

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.export.passes import move_to_device_pass
from torch.fx import GraphModule

from torchtrt_executorch.lifting import copied_graph

#: Copies of one program share the fake tensors of its graph, and their mode is no two threads'.
_moving = threading.Lock()


class StandIn:
    """A program with the bindings of a payload, ready to run.

    Args:
        program: On the CPU, returning a tuple. What it says that it writes to its buffers stays
            written, from call to call.

    Attributes:
        program: As it was given.
        inputs: Per input binding, by name, its fake tensor or symbolic int.
        outputs: Per output binding, by name, its fake tensor.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self._device = torch.device("cpu")
        self._running = threading.Lock()
        signature = program.graph_signature
        placeholders = program.graph.find_nodes(op="placeholder")
        self._weights = [
            spec.target
            for spec in signature.input_specs
            if spec.kind is not InputKind.USER_INPUT
        ]
        user_inputs = placeholders[len(self._weights) :]
        self._kinds = [(spec.kind, spec.target) for spec in signature.output_specs]
        returned = [
            node.meta["val"]
            for node, (kind, _) in zip(
                program.graph.output_node().args[0], self._kinds, strict=True
            )
            if kind is OutputKind.USER_OUTPUT
        ]
        self._versions: dict[str, int] = {}
        self._common: dict[str, torch.Tensor] = {}
        self.inputs = {node.name: node.meta["val"] for node in user_inputs}
        self.outputs = {f"output{index}": value for index, value in enumerate(returned)}

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run on ``inputs``, one tensor per binding; return new tensors, one per output.

        It runs where the first input lives. A symbolic size arrives as a tensor of one element,
        as engines take it. Like an engine it checks its inputs.

        Raises:
            ValueError: The number of inputs, or the dtype, rank or a size of one, isn't what the
                program was made for.
        """
        if len(inputs) != len(self.inputs):
            raise ValueError(
                f"the engine takes {len(self.inputs)} input{'s' * (len(self.inputs) != 1)}, "
                f"{len(inputs)} given"
            )
        with self._running, torch.no_grad():
            self._move(inputs[0].device if inputs else self._device)
            values = [
                self._value(name, tensor)
                for name, tensor in zip(self.inputs, inputs, strict=True)
            ]
            tensor_of = {**self.program.state_dict, **self.program.constants}
            if self._device.type == "cpu":
                self._check_weights(tensor_of)
            for name, tensor in self._common.items():
                if tensor.device != self._device:
                    tensor.data = tensor.to(self._device)
                tensor_of[name] = tensor
            weights = [tensor_of[name] for name in self._weights]
            results = self.program.graph_module(*weights, *values)
            # A payload returns dense memory, never that of its inputs or weights.
            dense = torch.contiguous_format
            outputs = [
                result.clone(memory_format=dense)
                for result, (kind, _) in zip(results, self._kinds, strict=True)
                if kind is OutputKind.USER_OUTPUT
            ]
            for result, (kind, target) in zip(results, self._kinds, strict=True):
                if kind is OutputKind.BUFFER_MUTATION:
                    tensor_of[target].copy_(result)
        return outputs

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Its weights and buffers by name."""
        tensor_of = {**self.program.state_dict, **self.program.constants}
        return {
            n: tensor_of[n]
            for n in self._weights
            if isinstance(tensor_of[n], torch.Tensor)
        }

    def sharing(self, tensors: Mapping[str, torch.Tensor]) -> StandIn:
        """Return a stand-in that shares ``tensors`` instead of its own, by name."""
        result = StandIn(self.program)
        result._versions, result._common = self._versions, dict(tensors)
        return result

    def instance(self) -> StandIn:
        """Return one with state of its own: itself, if it has none."""
        stateful = any(kind is OutputKind.BUFFER_MUTATION for kind, _ in self._kinds)
        return self.copy(share_weights=True) if stateful else self

    def copy(self, *, share_weights: bool = False) -> StandIn:
        """Return one with buffers of its own, and weights and constants unless they are shared."""
        program = self.program
        with self._running, unset_fake_temporarily():
            graph, _ = copied_graph(program.graph)
            shared = self._never_written() if share_weights else {}
            # Weights that are shared within the program stay shared.
            memo: dict[int, Any] = {id(tensor): tensor for tensor in shared.values()}
            result = StandIn(
                ExportedProgram(
                    root=GraphModule(program.graph_module, graph),
                    graph=graph,
                    graph_signature=program.graph_signature,
                    state_dict=copy.deepcopy(program.state_dict, memo),
                    range_constraints=program.range_constraints,
                    module_call_graph=program.module_call_graph,
                    constants=copy.deepcopy(program.constants, memo),
                    verifiers=[program.verifier],
                )
            )
            result._versions = self._versions or {
                name: tensor._version for name, tensor in shared.items()
            }
            return result

    def _never_written(self) -> dict[str, torch.Tensor]:
        """Tensors that share no memory with what the program writes to, and tell who else does."""
        tensors = {**self.program.state_dict, **self.program.constants}
        written = {
            tensors[target].untyped_storage()._cdata
            for kind, target in self._kinds
            if kind is OutputKind.BUFFER_MUTATION
        }
        return {
            name: tensor
            for name, tensor in tensors.items()
            if isinstance(tensor, torch.Tensor)
            and not tensor.is_inference()
            and tensor.untyped_storage()._cdata not in written
        }

    def _check_weights(self, tensor_of: Mapping[str, Any]) -> None:
        for name, version in self._versions.items():
            if name not in self._common and tensor_of[name]._version != version:
                raise RuntimeError(
                    f"{name} has been written to since the payload was built from it, so the "
                    "stand-in, which shares it, doesn't compute what the payload does: build it "
                    "again, or copy the model before"
                )

    def _move(self, device: torch.device) -> None:
        if device != self._device:
            with _moving:
                move_to_device_pass(self.program, str(device))
            self._device = device

    def _allows(self, size: int, built_size: int | torch.SymInt) -> bool:
        """Whether an engine that was built for ``built_size`` supports ``size``."""
        if not isinstance(built_size, torch.SymInt):
            return size == built_size
        bounds = self.program.range_constraints.get(built_size.node.expr)
        # torch.export may have a lower bound of 2 where one row is all right.
        return bounds is None or bool(min(bounds.lower, 1) <= size <= bounds.upper)

    def _value(self, name: str, tensor: torch.Tensor) -> torch.Tensor | int:
        expected = self.inputs[name]
        if not isinstance(expected, torch.Tensor):
            return int(tensor.item())
        fits = tensor.dtype == expected.dtype and tensor.dim() == expected.dim()
        if not fits or not all(map(self._allows, tensor.shape, expected.shape)):
            raise ValueError(
                f"the engine takes {expected.dtype} of shape {[*expected.shape]} as input {name}, "
                f"{tensor.dtype} of shape {[*tensor.shape]} given"
            )
        return tensor.to(self._device)
