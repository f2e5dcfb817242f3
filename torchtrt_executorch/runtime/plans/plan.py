"""Plan of a method: values and instructions, as validated plain data.

A value is identified by its index. The reads and writes of operations are defined here, for execution, for
static analysis (:mod:`.analysis`, :mod:`.placement_check`), and for inspection
(:mod:`torchtrt_executorch.inspection`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import torch

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.reading.files import NamedData
from torchtrt_executorch.runtime.tensors.layout import CPU, TensorLayout

#: Key of the compile spec by which the device pass has a delegate say that its program needs a host
#: which runs all delegates on one stream.
NEEDS_SHARED_STREAM = "needs_shared_stream"

#: The two operators that move a tensor between devices.
TO_DEVICE, FROM_DEVICE = "et_copy::_h2d_copy.out", "et_copy::_d2h_copy.out"
VIEW = "executorch_prim::et_view.default"


class Kind(Enum):
    """Kinds of operations."""

    KERNEL = "kernel"
    DELEGATE = "delegate"
    MOVE = "move"
    JUMP = "jump"
    FREE = "free"


class Allocation(NamedTuple):
    """Planned bytes: of an arena, whose memory is on a device."""

    arena: int
    device: torch.device
    start: int
    end: int

    def overlaps(self, other: Allocation) -> bool:
        """Whether both have some of the same bytes."""
        return (
            self.arena == other.arena
            and self.device == other.device
            and self.start < other.end
            and other.start < self.end
        )


@dataclass(frozen=True)
class Initializer:
    """Location of a tensor's initial data in a file.

    Attributes:
        key: Its name in the named data or a data file; None for what the program itself has.
        index: Of a constant, or of a buffer in mutable data segment ``segment``.
    """

    key: str | None = None
    index: int = 0
    segment: int | None = None


@dataclass(frozen=True)
class PlanValue:
    """One value, as the program declares it.

    Attributes:
        kind: ``"tensor"``, or the kind of anything else: ``"int"``, ``"tensor list"``.
        name: For messages.
        qualified_name: The model's name of it, for weights and buffers.
        literal: The number, the text, or the list of numbers that it is at first.
        items: Of a list of values, their indices; None for a tensor that is left out.
        layout: Of a tensor.
        label: Device in a tensor's metadata; None where that isn't used.
        place: The planned memory of a tensor, if it has some.
        stored: Location of its initial data, if the file has them.
    """

    index: int
    kind: str
    name: str
    qualified_name: str = ""
    literal: Any = None
    items: tuple[int | None, ...] | None = None
    layout: TensorLayout | None = None
    label: torch.device | None = CPU
    place: Allocation | None = None
    stored: Initializer | None = None

    @property
    def planned(self) -> bool:
        """Whether it is a tensor in an arena."""
        return self.place is not None

    @property
    def constant(self) -> bool:
        """Whether it is a tensor that is nowhere but in the file."""
        return self.stored is not None and self.place is None

    @property
    def free(self) -> bool:
        """Whether it is a tensor without memory of the plan's or the file's."""
        return self.layout is not None and self.place is None and self.stored is None


@dataclass(frozen=True)
class ValueInfo:
    """One input or output of a method.

    ``kind`` is ``"tensor"``, or the Python type's name of anything else; the rest is for tensors:
    ``shape`` is the largest one if ``dynamic``, ``device`` is where the program wants the tensor.
    """

    name: str
    kind: str
    shape: tuple[int, ...] | None = None
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    dynamic: bool = False

    @classmethod
    def of(cls, value: PlanValue, name: str) -> ValueInfo:
        """Describe a value."""
        layout = value.layout
        if layout is None:
            return cls(name, type(value.literal).__name__)
        there = layout.sizes, layout.dtype, layout.device, not layout.static
        return cls(name, "tensor", *there)


@dataclass(frozen=True)
class Operation:
    """One instruction.

    Attributes:
        name: The operator, ``namespace::operator.overload``, or what messages call the delegate.
        args: The indices of the values that it names, in order.
        reads, writes: The values that it reads and writes, by index, lists taken apart.
        replaces: Slots that hold another object after it, not the same one with other contents.
        aliases: Slots whose memory may be another one's after it.
        delegate: Index of the delegate that it calls.
        inputs: Of a delegate's ``args``, how many are inputs; the others are outputs.
        destination: Of a jump, the operation that it may go on at.
    """

    kind: Kind
    name: str
    args: tuple[int, ...]
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    replaces: tuple[int, ...] = ()
    aliases: tuple[int, ...] = ()
    delegate: int | None = None
    inputs: int = 0
    destination: int | None = None

    @property
    def touches(self) -> tuple[int, ...]:
        """All that it reads or writes."""
        return (*self.reads, *self.writes)

    @property
    def is_copy(self) -> bool:
        """Whether it moves a tensor between devices."""
        return self.name in (TO_DEVICE, FROM_DEVICE)


@dataclass(frozen=True)
class BackendInfo:
    """Description of a delegate's payload, by its backend.

    Attributes:
        device: The device that it runs on.
        takes_host: Whether it also takes tensors in host memory.
        num_inputs: Number of inputs; None if unknown.
        built_by: The builder, in words; empty if unknown.
        digests: Returns the digests of the parts by which a stand-in is found; None where there are none.
    """

    device: torch.device
    takes_host: bool
    num_inputs: int | None = None
    built_by: str = ""
    digests: Callable[[], tuple[bytes, ...]] | None = None


@dataclass(frozen=True)
class Payload:
    """The data of one delegate in a program.

    Attributes:
        file_bytes: The payload's bytes, as the file has them.
    """

    backend_id: str
    name: str
    file_bytes: memoryview
    compile_specs: Mapping[str, bytes]
    named_data: Mapping[str, NamedData]

    @property
    def payload(self) -> memoryview:
        """The payload's bytes."""
        return self.file_bytes

    def data(self, key: str) -> memoryview:
        """Named data of the program or of its data files. ``ProgramError`` if it isn't there."""
        return self._named(key).data

    def digest(self, key: str) -> bytes:
        """Return the sha256 of named data, as the program was saved with. ``ProgramError`` if it isn't there."""
        return self._named(key).digest

    def _named(self, key: str) -> NamedData:
        if key not in self.named_data:
            raise ProgramError(
                f"{self.name} needs the named data {key!r}, which is neither in the program nor "
                "in the given data files; pass the .ptd that was saved beside the .pte as "
                "data_files=[...]"
            )
        return self.named_data[key]

    def target_device(self, default: str) -> torch.device:
        """Return the device of the compile spec ``target_device``, or ``default``."""
        text = self.compile_specs.get("target_device", default.encode())
        try:
            device = torch.device(text.decode().strip().lower())
        except (RuntimeError, UnicodeDecodeError):
            raise ProgramError(
                f"{self.name}: target_device {text!r} is no device"
            ) from None
        return (
            device
            if device.type == "cpu"
            else torch.device(device.type, device.index or 0)
        )

    def smallest_inputs(self) -> dict[str, tuple[int, ...]]:
        """Return the smallest shapes of an engine's profile, by input name, if the compile spec ``min_shapes`` has them.

        Raises ``ProgramError`` for one that is damaged.
        """
        return self._shapes("min_shapes")

    def optimal_inputs(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes that an engine is optimized for, likewise, of the compile spec ``opt_shapes``."""
        return self._shapes("opt_shapes")

    def _shapes(self, key: str) -> dict[str, tuple[int, ...]]:
        text = self.compile_specs.get(key, b"{}")
        try:
            return {str(k): (*map(int, v),) for k, v in json.loads(text).items()}
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise ProgramError(
                f"{self.name}: the compile spec {key} is {text[:80]!r}, which are no shapes"
            ) from None


@dataclass(frozen=True)
class Arena:
    """One block of planned memory of ``nbytes`` bytes.

    Tensors of one arena on several devices have a block on each: labels decide where no arena has a
    device of its own.
    """

    index: int
    device: torch.device
    nbytes: int


@dataclass(frozen=True)
class Plan:
    """One method. ``inputs`` and ``outputs`` are indices of values, in the caller's order.

    Attributes:
        arenas: By their numbers in the program; ExecuTorch leaves the first one empty.
        places_devices: Whether arenas say where they are. All planned memory is the host's otherwise.
        input_tree: TreeSpec of the inputs, as PyTorch serializes it.
        output_tree: Likewise of the outputs.
    """

    name: str
    values: Sequence[PlanValue]
    operations: Sequence[Operation]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    delegates: Sequence[Payload]
    arenas: Sequence[Arena]
    places_devices: bool = False
    input_tree: str = ""
    output_tree: str = ""

    @property
    def described_inputs(self) -> tuple[ValueInfo, ...]:
        """The method's inputs, in order."""
        return self._described(self.inputs, "input")

    @property
    def described_outputs(self) -> tuple[ValueInfo, ...]:
        """The method's outputs, in order."""
        return self._described(self.outputs, "output")

    def _described(self, indices: Sequence[int], role: str) -> tuple[ValueInfo, ...]:
        return tuple(
            ValueInfo.of(self.values[value_index], f"{role} {i}")
            for i, value_index in enumerate(indices)
        )

    @property
    def constants(self) -> tuple[Any, ...] | None:
        """The results of a constant method: one without inputs, operations and tensors; None for others."""
        outputs = [self.values[index] for index in self.outputs]
        if self.inputs or self.operations or any(output.layout for output in outputs):
            return None
        return tuple(output.literal for output in outputs)

    @cached_property
    def straight(self) -> bool:
        """Whether nothing jumps."""
        return not self.destinations

    @cached_property
    def destinations(self) -> frozenset[int]:
        """The operations that are destinations of jumps."""
        return frozenset(
            operation.destination
            for operation in self.operations
            if operation.destination is not None
        )

    def tensors(self, indices: Sequence[int]) -> Iterator[PlanValue]:
        """Yield the values at ``indices`` that are tensors."""
        for index in indices:
            if self.values[index].layout is not None:
                yield self.values[index]
