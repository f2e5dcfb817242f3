"""Values of a method: what instructions read and write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Sequence

import torch

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.tensors.layout import CPU, TensorLayout

#: Runs one operation. A jump returns the next one's index, or None for the one that follows.
Run = Callable[[], "int | None"]


@dataclass(eq=False)
class Value:
    """One value of a method, and its current content.

    ``data`` is a ``torch.Tensor``, ``int``, ``float``, ``bool``, ``str``, ``None``, a list of
    ``bool`` or ``float``, or a :class:`Boxed` list.

    Attributes:
        index: Index among the method's values; -1 for a value of no program.
        layout: Of a tensor.
        device: Current device of a tensor.
        label: Device in its metadata; None where that isn't used.
        planned, constant: Whether it is a tensor in an arena, or one that is only in the file. One that
            is neither may hold None until it is given memory, or takes a tensor.
        pinned: Whether it is planned where a GPU copies from and to by itself.
        fixed: Whether ``data`` is the same object in every call, a tensor at most of another shape.
        delegate_private: Whether one delegate writes it, and none but delegates read it, so that it may have other
            memory in every call.
        memory: Torch device of a tensor's memory.
    """

    name: str
    data: Any = None
    layout: TensorLayout | None = None
    index: int = -1
    device: torch.device = CPU
    label: torch.device | None = CPU
    planned: bool = False
    constant: bool = False
    pinned: bool = False
    fixed: bool = False
    delegate_private: bool = False
    memory: torch.device = CPU

    def get(self) -> Any:
        """Return the value as torch takes it: lists unboxed."""
        data = self.data
        return data.get() if type(data) is Boxed else data

    def tensors(self) -> Sequence[Value]:
        """Return the tensor values in here: itself, the elements of a list, or none."""
        values = self.data.items if type(self.data) is Boxed else (self,)
        return [v for v in values if v is not None and v.layout is not None]

    @property
    def steady(self) -> bool:
        """Whether ``data`` is the same tensor in every call, and of the same shape."""
        return self.fixed and self.layout is not None and self.layout.static

    @property
    def signature(self) -> object:
        """The properties that don't change between calls, to be compared."""
        layout = self.layout
        if layout is None:
            return type(self.data)
        return layout.dtype, layout.sizes, layout.dim_order, layout.dynamism

    @property
    def tensor(self) -> torch.Tensor:
        if not isinstance(self.data, torch.Tensor):
            raise self._is_no("tensor")
        return self.data

    def number(self) -> Any:
        if not isinstance(self.data, (bool, int, float)):
            raise self._is_no("number")
        return self.data

    def _is_no(self, wanted: str) -> ProgramError:
        actual = "empty" if self.data is None else f"a {type(self.data).__name__}"
        return ProgramError(f"{self.name} is {actual} where a {wanted} is needed")

    def resize(self, shape: Sequence[int]) -> torch.Tensor:
        """Return the tensor, with a shape that the program allows it."""
        self._writable().resize(self.tensor, tuple(shape))
        return self.tensor

    def write(self, result: torch.Tensor) -> None:
        """Copy ``result`` in, with its shape. Raises ``ProgramError`` if it doesn't fit."""
        layout = self._writable()
        if result.dtype != layout.dtype:
            raise ProgramError(
                f"{self.name} is {layout.dtype}, but its producer made {result.dtype}"
            )
        if self.data is None:
            self.allocator()()
        own = self.tensor
        if own.shape != result.shape:
            layout.resize(own, tuple(result.shape))
        own.copy_(result)

    def take(self, result: torch.Tensor) -> None:
        """Replace the value by ``result``, which nothing else refers to; copy it if this one's memory is planned.

        Raises ``ProgramError`` if it doesn't fit.
        """
        layout = self._writable()
        if not self.planned and result.device == self.memory and layout.is_of(result):
            self.data = result
        else:
            self.write(result)

    def _writable(self) -> TensorLayout:
        if self.layout is None or self.constant:
            raise ProgramError(f"{self.name} can't be written: it is a constant")
        return self.layout

    def allocator(self) -> Callable[[], None]:
        """Return what gives a tensor that has no planned memory its own, for one call."""
        assert self.layout is not None
        layout = self.layout
        sizes = (0,) * len(layout.sizes) if layout.unbounded else layout.sizes
        device, strides = layout.device, layout.strides(sizes)
        made = torch.empty(0, dtype=layout.dtype, device=self.memory).new_empty_strided

        def allocate() -> None:
            self.device = device
            self.data = made(sizes, strides)

        return allocate


@dataclass(frozen=True)
class Boxed:
    """A list whose elements are values of their own: ints, tensors, optional tensors."""

    items: Sequence[Value | None]

    def __repr__(self) -> str:
        """Without its elements: moves may have it hold lists that hold each other."""
        return f"a list of {len(self.items)} values"

    def get(self) -> list[Any]:
        return [item if item is None else item.data for item in self.items]


def same_kind(source: Value, target: Value) -> None:
    """Raise ``ProgramError`` unless ``target`` may be given the ``data`` of ``source``."""
    one, other = (value.layout and value.layout.dtype for value in (source, target))
    if one != other:
        raise ProgramError(
            f"{source.name} can't become {target.name}: {one or 'no tensor'} and "
            f"{other or 'no tensor'}"
        )
