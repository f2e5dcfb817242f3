"""Programs with TensorRT engines in them, compiled and exported for real; the engines are emulated."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

import pytest
import torch
import torch_tensorrt
from torch.export import ExportedProgram
from torch_tensorrt.executorch.engines.record import Slot

from torchtrt_executorch import emulated_engines


class Affine(torch.nn.Module):
    """``x * y + z`` and its sine, of three inputs that can't be mistaken for each other."""

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        value = x * y + z
        return value, value.sin()


class Linear(torch.nn.Module):
    def __init__(self, features: int = 4) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(features, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


def compile_engine(
    model: torch.nn.Module, inputs: Sequence[Any], device: int = 0
) -> torch.fx.GraphModule:
    """Return ``model`` compiled into an emulated engine for GPU ``device``."""
    with emulated_engines():
        return torch_tensorrt.compile(
            model.eval(),
            ir="dynamo",
            arg_inputs=inputs,
            min_block_size=1,
            device=torch_tensorrt.Device(gpu_id=device),
        )


def record_of(module: torch.fx.GraphModule) -> list[Any]:
    """Return the record of a compiled module's only engine."""
    (held,) = [each for each in module.modules() if hasattr(each, "serialized_engine")]
    return list(held.engine.serialized_info)


class EngineCall(torch.nn.Module):
    """One engine, called in the placeholder form of the installed release.

    Args:
        record: The engine's record.
        changes: Slots of it that are to say something else.
        order: Per input binding, the argument that it takes; all in order if empty.
        returned: The outputs returned, by index; all in order if empty.
    """

    def __init__(
        self,
        record: Sequence[Any],
        changes: Mapping[int, str] | None = None,
        order: Sequence[int] = (),
        returned: Sequence[int] = (),
    ) -> None:
        super().__init__()
        # Registers the placeholder.
        import torch_tensorrt.dynamo.runtime.meta_ops.register_meta_ops  # noqa: F401

        self.record = [*record]
        for slot, value in (changes or {}).items():
            self.record[slot] = value
        engine = bytearray(self.record[Slot.ENGINE])
        self.register_buffer("engine", torch.frombuffer(engine, dtype=torch.uint8))
        self.order, self.returned = order, returned

    def forward(self, *arguments: torch.Tensor) -> Any:
        outputs = torch.ops.tensorrt.no_op_placeholder_for_execute_engine(
            [arguments[i] for i in self.order or range(len(arguments))],
            *self.record[: Slot.ENGINE],
            self.engine,
            *self.record[Slot.ENGINE + 1 :],
        )
        outputs = [outputs[i] for i in self.returned or range(len(outputs))]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def callable_in_a_program(
    module: torch.fx.GraphModule, changes: Mapping[int, str] | None = None
) -> torch.nn.Module:
    """Return a compiled module as ``torch.export`` can trace it within another.

    That is the module itself, unless its engine's record is to be changed.
    """
    return EngineCall(record_of(module), changes) if changes else module


@pytest.fixture(scope="session")
def affine_inputs() -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(2, 3) for _ in range(3))


@pytest.fixture(scope="session")
def affine(affine_inputs: tuple[torch.Tensor, ...]) -> torch.fx.GraphModule:
    """:class:`Affine`, compiled into one engine."""
    return compile_engine(Affine(), affine_inputs)


@pytest.fixture(scope="session")
def affine_record(affine: torch.fx.GraphModule) -> list[Any]:
    """The record of that engine: inputs x, y, z, outputs output0, output1."""
    return record_of(affine)


@pytest.fixture(scope="session")
def placeholder_program(
    affine_record: list[Any], affine_inputs: tuple[torch.Tensor, ...]
) -> Callable[..., ExportedProgram]:
    """A function of :class:`EngineCall`'s options that exports a call of the affine engine."""

    def export(*options: Any, **named: Any) -> ExportedProgram:
        call = EngineCall(affine_record, *options, **named)
        return torch.export.export(call, tuple(affine_inputs))

    return export
