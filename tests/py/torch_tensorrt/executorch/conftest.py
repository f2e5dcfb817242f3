"""Programs with TensorRT engines in them, compiled and exported for real; the engines are emulated."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import pytest
import torch

import torch_tensorrt  # isort: skip  (torch first: it activates the overlay)
from torch.export import ExportedProgram

from torchtrt_executorch import emulated_engines

Tensors = Sequence[Any]


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
    model: torch.nn.Module, inputs: Tensors, device: int = 0, **options: Any
) -> torch.fx.GraphModule:
    """Return ``model`` compiled into emulated engines for GPU ``device``."""
    with emulated_engines():
        return torch_tensorrt.compile(
            model.eval(),
            ir="dynamo",
            arg_inputs=inputs,
            min_block_size=1,
            device=torch_tensorrt.Device(gpu_id=device),
            **options,
        )


def engines_of(module: torch.nn.Module) -> list[Any]:
    """Return the engines of a compiled module, in the order of its submodules."""
    return [m.engine for m in module.modules() if hasattr(m, "serialized_engine")]


class PlaceholderCall(torch.nn.Module):
    """One engine, called in the placeholder form on ``order`` of its arguments.

    Returns the engine's outputs by ``returned``, their indices.
    """

    def __init__(
        self, record: Sequence[Any], order: Sequence[int], returned: Sequence[int]
    ) -> None:
        super().__init__()
        self.register_buffer(
            "engine", torch.frombuffer(bytearray(record[3]), dtype=torch.uint8)
        )
        self.record = [value if isinstance(value, str) else "" for value in record]
        self.order = order
        self.returned = returned

    def forward(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = torch.ops.tensorrt.no_op_placeholder_for_execute_engine(
            [arguments[i] for i in self.order],
            *self.record[:3],
            self.engine,
            *self.record[4:],
        )
        return tuple(outputs[i] for i in self.returned)


@pytest.fixture(scope="session")
def affine_inputs() -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(2, 3) for _ in range(3))


@pytest.fixture(scope="session")
def affine(affine_inputs: tuple[torch.Tensor, ...]) -> torch.fx.GraphModule:
    """:class:`Affine`, compiled into one engine."""
    import torch_tensorrt.dynamo.runtime.meta_ops.register_meta_ops  # noqa: F401

    return compile_engine(Affine(), affine_inputs)


@pytest.fixture(scope="session")
def affine_record(affine: torch.fx.GraphModule) -> list[Any]:
    """The record of that engine: inputs x, y, z, outputs output0, output1."""
    (engine,) = engines_of(affine)
    return list(engine.serialized_info)


@pytest.fixture(scope="session")
def placeholder_program(
    affine_record: list[Any], affine_inputs: tuple[torch.Tensor, ...]
) -> Callable[..., ExportedProgram]:
    """A function that exports a call of the affine engine, its record changed by slot."""

    def export(
        changes: dict[int, str] | None = None,
        order: Sequence[int] = (0, 1, 2),
        returned: Sequence[int] = (0, 1),
    ) -> ExportedProgram:
        record = list(affine_record)
        for slot, value in (changes or {}).items():
            record[slot] = value
        call = PlaceholderCall(record, order, returned)
        return torch.export.export(call, tuple(affine_inputs))

    return export
