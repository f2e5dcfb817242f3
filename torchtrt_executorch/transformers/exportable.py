"""A model of transformers' as the methods of its program: each one's module, inputs and backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram, export
from torch.utils import _pytree as pytree

from torchtrt_executorch.progress import step
from torchtrt_executorch.runtime.program import Program
from torchtrt_executorch.transformers.cache_buffers import caches_of_buffers


@dataclass(frozen=True)
class Form:
    """The methods of a program, and their backends.

    Attributes:
        prefill: Backend of the method for prompts, of encoders, or of the only method: ``tensorrt``, ``cuda``, ``xnnpack``,
            or ``portable`` for ExecuTorch's CPU kernels.
        decode: Backend of a language model's method for one token, if there is one; with encoders, of the method that
            is called for each token.
        length: Capacity of the cache in tokens.
        chunk: Tokens of a prefill chunk; None for the cache's capacity.
        sampled: Whether methods return tokens, sampled by a temperature and a seed.
        int8_cache: Whether keys and values are stored in int8.
    """

    prefill: str = "tensorrt"
    decode: str | None = None
    length: int = 128
    chunk: int | None = None
    sampled: bool = False
    int8_cache: bool = False

    @property
    def backends(self) -> Mapping[str, str]:
        """The backend of each method of a language model."""
        if self.decode is None:
            return {"forward": self.prefill}
        return {"prefill": self.prefill, "decode": self.decode}

    @property
    def longest(self) -> int:
        """The longest chunk of a prompt."""
        return min(self.chunk or self.length, self.length)


class Exportable(ABC):
    """A model, and the methods that it is exported as.

    Attributes:
        module: With all weights.
        form: How it is exported. What lowers its methods may be changed, and what was traced is lowered again.
        folder: Folder that it was saved in.
    """

    folder: Path | None = None

    def __init__(self, module: Any, form: Form) -> None:
        self.module = module.train(False).requires_grad_(False)
        self.form = form
        self._traced: dict[Any, ExportedProgram] = {}

    @property
    @abstractmethod
    def backends(self) -> Mapping[str, str]:
        """The backend of each method."""

    @abstractmethod
    def programs(self) -> dict[str, ExportedProgram]:
        """Return its methods, traced."""

    @abstractmethod
    def constants(self, programs: Mapping[str, ExportedProgram]) -> dict[str, Any]:
        """Return what constant methods tell a host, by the names that upstream's runners read."""

    @abstractmethod
    def compared(self, program: Program, count: int) -> tuple[list[int], float]:
        """Return up to ``count`` tokens that ``program`` makes, and its difference from eager as a part of the largest.

        The difference is that of logits where it makes tokens, given the same tokens before them, else of outputs.
        """

    @property
    def dtype(self) -> torch.dtype:
        """The type of its weights."""
        dtype: torch.dtype = next(self.module.parameters()).dtype
        return dtype


@dataclass(frozen=True)
class Method:
    """A method to be traced.

    Attributes:
        module: The module that it calls.
        inputs: Examples.
        axes: Their dynamic axes, as ``torch.export`` takes them.
        repeated: Whether it is called for each token, so that :attr:`Form.decode` lowers it.
    """

    module: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    axes: tuple[Any, ...] | None = None
    repeated: bool = False


class WithMethods(Exportable):
    """A model whose methods are modules, each called with tensors."""

    def __init__(self, module: Any, form: Form) -> None:
        if form.sampled:
            raise ValueError(
                f"methods of {type(self).__name__} models return logits: only language models return tokens"
            )
        super().__init__(module, form)

    @cached_property
    @abstractmethod
    def methods(self) -> dict[str, Method]:
        """Its methods, by the names that upstream's runners call."""

    @property
    def backends(self) -> Mapping[str, str]:
        """The backend of each method."""
        often = self.form.decode or self.form.prefill
        return {
            name: often if method.repeated else self.form.prefill
            for name, method in self.methods.items()
        }

    def programs(self) -> dict[str, ExportedProgram]:
        """Return its methods, traced."""
        for name, method in self.methods.items():
            if name in self._traced:
                continue
            with step(f"trace {name}"):
                self._traced[name] = traced(
                    method.module, method.inputs, dynamic_shapes=method.axes
                )
        return dict(self._traced)

    def compared(self, program: Program, count: int) -> tuple[list[int], float]:
        """Return no tokens, and the largest difference of any method's outputs from eager's, as a part of the largest."""
        del count
        off = 0.0
        for name, method in self.methods.items():
            with torch.no_grad():
                wanted = pytree.tree_leaves(method.module(*method.inputs))
            made = program.method(name)(*method.inputs)
            for ours, theirs in zip(made, wanted, strict=True):
                off = max(off, difference(ours.cpu(), theirs))  # type: ignore[union-attr]
        return [], off


def traced(module: Any, *args: Any, **kwargs: Any) -> ExportedProgram:
    """Return what ``torch.export.export`` does, without gradients, and with what a module's static caches are written."""
    with torch.no_grad(), caches_of_buffers(module):
        return export(module, *args, **kwargs)


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the largest difference of two tensors, as a part of the largest value of the second."""
    largest = theirs.double().abs().max().clamp(min=1e-12)
    return float((ours.double() - theirs.double()).abs().max() / largest)


def noise(model: Exportable, *shape: int) -> torch.Tensor:
    """Return an example input, the same each time, in a model's type."""
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    return made.to(model.dtype)
