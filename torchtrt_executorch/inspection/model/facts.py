"""The facts of a ``.pte``: the data model that every view reads.

Plain data. Indices of values and instructions are the program's own, per method; sizes are in
bytes; a device is ``"host"``, or ``"cuda:0"`` as the program numbers its GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Iterable, Mapping, Sequence

from torchtrt_executorch.payloads.cuda_library import KernelBinary
from torchtrt_executorch.payloads.native_library import NativeLibrary
from torchtrt_executorch.runtime.reading.common_state import CommonState

HOST = "host"


@dataclass(frozen=True)
class Value:
    """A tensor, a number or a list that instructions read and write.

    Attributes:
        kind: ``"tensor"``, or the kind of anything else: ``"int"``, ``"tensor list"``.
        name: The model's name of it, for weights and buffers; else empty.
        shape: Of a tensor, the largest one if it is ``dynamic``.
        dtype: Of a tensor, as PyTorch calls it: ``float32``.
        nbytes: Of a tensor, at its largest.
        device: The device of its memory.
        storage: ``"planned"``, ``"constant"`` (in the file), ``"external"`` (in a data file), or
            ``"caller"`` for what is handed in or made while the method runs.
        arena: The planned arena that it is in, 0 if it is in none, and its ``offset`` there.
        initialized: Whether the file has its first bytes, as for a buffer that is written to.
    """

    index: int
    kind: str
    name: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    nbytes: int = 0
    dynamic: bool = False
    device: str = HOST
    storage: str = ""
    arena: int = 0
    offset: int = 0
    initialized: bool = False


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        kind: ``"kernel"``, ``"delegate"``, ``"copy"`` (between devices), ``"move"``, ``"jump"`` or
            ``"free"``.
        name: The operator, or the backend.
        device: The device that it runs on; of a copy, its target.
        reads, writes: The tensors and numbers that it does, lists taken apart.
        delegate: Index of the delegate that it calls.
        destination: Of a jump, the instruction that it may go on at.
        orders: Whether it is a copy of one byte that orders delegates, and moves no value.
    """

    index: int
    kind: str
    name: str
    device: str
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    delegate: int | None = None
    destination: int | None = None
    orders: bool = False


@dataclass(frozen=True)
class Delegate:
    """Facts of a delegate.

    Attributes:
        backend: Its id: ``TensorRTBackend``.
        device: The device that it runs on.
        nbytes: The size of its payload, libraries and weights in named data included.
        payload: Its kind, in words: ``TensorRT-RTX 1.5.0.114``, ``EMULATED``.
        inputs, outputs: An engine's names of them.
        smallest: By input, the smallest shape of the engine's profile.
        optimal: By input of several shapes, the one that the engine is optimized for.
        largest: By input of several shapes, the largest that the program allows.
        gpus: GPUs that it has code for, as ``sm_90``; with a ``+`` after it, later ones as
            well. None if the file doesn't tell.
        emulated: Whether it is an emulated engine.
        named_data: Keys of the data that it takes from the program or a data file.
        missing: Keys that are in neither.
        shared_stream: Whether it needs a host that runs all delegates on one stream.
        kernels: Of each of its shared libraries, what it has for GPUs.
        native: Requirements of its shared library, if it is one.
        damaged: How the payload is damaged; empty if it isn't.
        owner: Whether it is TensorRT's, CUDA's (AOTInductor), or another backend's.
    """

    index: int
    backend: str
    device: str
    nbytes: int
    payload: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    smallest: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    optimal: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    largest: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    gpus: tuple[str, ...] | None = None
    emulated: bool = False
    named_data: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    shared_stream: bool = False
    kernels: tuple[tuple[KernelBinary, ...], ...] = ()
    native: NativeLibrary | None = None
    damaged: str = ""
    owner: str = "other"


@dataclass(frozen=True)
class Arena:
    """One block of planned memory.

    Attributes:
        index: Its number in the program.
        device: Where it is.
        nbytes: Its size.
    """

    index: int
    device: str
    nbytes: int


@dataclass(frozen=True)
class Transfer:
    """A value that goes from one device to another.

    Attributes:
        instruction: The one that moves it: a copy, or a delegate that stages its own I/O.
        value: The value, as it is before.
        source, target: Devices.
        nbytes: Bytes of the transfer.
        staged: Whether a delegate moves it by itself, as its memory is on another device.
    """

    instruction: int
    value: int
    source: str
    target: str
    nbytes: int
    staged: bool


@dataclass(frozen=True)
class Times:
    """Times of a method's calls, in nanoseconds.

    Attributes:
        calls: Number of measured calls.
        call: The median of a call.
        instructions: The median of each instruction's time in a call; those that weren't measured,
            or are launched together with another, are left out.
        instead: Of delegates whose payload didn't run, whose time it is: ``"by a stand-in"``, or
            ``"did not run here"``. No advice goes by times then.
    """

    calls: int
    call: float
    instructions: Mapping[int, float]
    instead: Mapping[int, str] = field(default_factory=dict)

    def of(self, instructions: Sequence[int]) -> float:
        """Nanoseconds of a call that these took."""
        return sum(
            self.instructions.get(instruction, 0.0) for instruction in instructions
        )

    def share(self, nanoseconds: float) -> float:
        """Return the fraction of a call."""
        return nanoseconds / self.call if self.call else 0.0


@dataclass(frozen=True)
class Method:
    """One method. ``inputs`` and ``outputs`` are values, in the caller's order.

    Attributes:
        faults: Violations of device rules, with their instructions.
        without_kernel: The instructions whose operators ExecuTorch by itself has no kernels for.
        times: Measured times, if there are any.
        input_names: Names of the caller's inputs, where they were exported under names.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    values: Sequence[Value]
    instructions: Sequence[Instruction]
    delegates: Sequence[Delegate]
    arenas: Sequence[Arena]
    faults: Sequence[tuple[int, str]] = ()
    without_kernel: Sequence[int] = ()
    times: Times | None = None
    input_names: Sequence[str] = ()

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The host, then every device where something runs or lies, in order."""
        names = {step.device for step in self.instructions}
        names |= {delegate.device for delegate in self.delegates}
        names |= {arena.device for arena in self.arenas}
        names |= {value.device for value in self.values}
        return (HOST, *sorted(names - {HOST}, key=_numbered))

    @cached_property
    def writers(self) -> Mapping[int, Sequence[int]]:
        """By value, the instructions that write it, in order."""
        return _by_value(
            (instruction.index, instruction.writes) for instruction in self.instructions
        )

    @cached_property
    def readers(self) -> Mapping[int, Sequence[int]]:
        """By value, the instructions that read it, in order."""
        return _by_value(
            (instruction.index, instruction.reads) for instruction in self.instructions
        )

    @cached_property
    def transfers(self) -> Sequence[Transfer]:
        """All that goes from device to device, in order."""
        return [
            transfer for step in self.instructions for transfer in self._transfers(step)
        ]

    @cached_property
    def between_gpus(self) -> Sequence[Transfer]:
        """Transfers from one GPU to another through the host, one for each target GPU."""
        written = {
            value: self.values[step.reads[0]]
            for step in self.instructions
            if step.kind == "copy" and step.device == HOST and step.reads
            for value in step.writes
        }
        return [
            replace(transfer, value=source.index, source=source.device)
            for transfer in self.transfers
            if not transfer.staged
            and (source := written.get(transfer.value)) is not None
            and source.device not in (HOST, transfer.target)
        ]

    def _transfers(self, step: Instruction) -> list[Transfer]:
        staged = step.kind == "delegate" and step.device != HOST
        if step.kind != "copy" and not staged:
            return []
        reads, writes = (
            [self.values[index] for index in indices]
            for indices in (step.reads, step.writes if staged else ())
        )
        ways = [(value, value.device, step.device) for value in reads]
        ways += [(value, step.device, value.device) for value in writes]
        return [
            Transfer(step.index, value.index, source, target, value.nbytes, staged)
            for value, source, target in ways
            if value.kind == "tensor" and (source != target or not staged)
        ]


@dataclass(frozen=True)
class Facts:
    """A whole file.

    Attributes:
        name: Name of the file.
        nbytes: Its size.
        methods: In the file's order.
        named_data: Blobs by key, with their sizes, data files' included.
        data_files: The data files that were read, by name.
        missing_data: Weights that are in no file, by name, with their sizes.
        data_problem: Why the data files next to the program weren't used, if they weren't.
        common: Buffers that methods have in common, and where each keeps them, if the file says so.
        twice: Blobs of the same bytes, by what each is called, and their size.
        constants: Results of constant methods, by name.
    """

    name: str
    nbytes: int
    methods: Sequence[Method]
    named_data: Mapping[str, int] = field(default_factory=dict)
    data_files: tuple[str, ...] = ()
    missing_data: Mapping[str, int] = field(default_factory=dict)
    data_problem: str = ""
    common: CommonState = CommonState()
    twice: Sequence[tuple[tuple[str, ...], int]] = ()
    constants: Mapping[str, tuple[object, ...]] = field(default_factory=dict)


def _numbered(device: str) -> tuple[str, int]:
    kind, _, index = device.partition(":")
    return kind, int(index or 0)


def _by_value(uses: Iterable[tuple[int, tuple[int, ...]]]) -> dict[int, list[int]]:
    instructions_of: dict[int, list[int]] = {}
    for instruction, values in uses:
        for value in dict.fromkeys(values):
            instructions_of.setdefault(value, []).append(instruction)
    return instructions_of
