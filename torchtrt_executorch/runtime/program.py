"""Load a ``.pte`` and call its methods."""

from __future__ import annotations

import os
import threading
from typing import Any, Sequence

from executorch.exir import schema

from torchtrt_executorch.emulation import emulation_enabled
from torchtrt_executorch.files import check_writable, staged
from torchtrt_executorch.runtime.arenas import SharedState
from torchtrt_executorch.runtime.calling import CallLock
from torchtrt_executorch.runtime.delegates import Payload
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.files import ProgramFile, Source, read_program
from torchtrt_executorch.runtime.method import Method
from torchtrt_executorch.runtime.placement import Placement
from torchtrt_executorch.runtime.stand_ins import StandIns
from torchtrt_executorch.runtime.stats import Recorder, Stats
from torchtrt_executorch.runtime.streams import NEEDS_SHARED_STREAM, Running
from torchtrt_executorch.stand_ins import find
from torchtrt_executorch.stand_ins.file import StandInFile, write


class Program:
    """A loaded ``.pte``. Methods are prepared when they are first asked for."""

    def __init__(
        self,
        file: ProgramFile,
        placement: Placement,
        stand_ins: StandIns,
        cuda_graphs: bool,
    ) -> None:
        self._cuda_graphs = cuda_graphs
        self._file = file
        self._placement = placement
        self._stand_ins = stand_ins
        self._recorder = Recorder()
        self._lock = threading.Lock()
        self._methods: dict[str, Method] = {}
        self._plans: dict[str, schema.ExecutionPlan] = {}
        if not file.program.execution_plan:
            raise ProgramError("the program has no methods")
        for plan in file.program.execution_plan:
            if plan.name is None or plan.name in self._plans:
                raise ProgramError(
                    f"a method name is missing or repeated: {plan.name!r}"
                )
            self._plans[plan.name] = plan
        self._shared = SharedState(file.program.execution_plan)
        self._calls = CallLock()

    @property
    def method_names(self) -> tuple[str, ...]:
        """The names of the program's methods, in the file's order."""
        return tuple(self._plans)

    def method(self, name: str = "forward") -> Method:
        """The method ``name``, the same object every time: its state is the program's.

        Raises ``KeyError`` if there is none, ``ProgramError`` if it can't be run here.
        """
        if name not in self._plans:
            raise KeyError(
                f"no method {name!r}; the program has {', '.join(self._plans)}"
            )
        with self._lock:
            if name not in self._methods:
                self._methods[name] = Method(
                    self._plans[name],
                    self._file,
                    self._placement,
                    self._recorder,
                    self._stand_ins,
                    self._shared,
                    self._calls if self._shared.arenas else CallLock(),
                    self._cuda_graphs,
                )
            return self._methods[name]

    def run(self, *inputs: Any) -> tuple[Any, ...]:
        """Call ``forward``, or the only method that there is."""
        only = len(self._plans) == 1
        return self.method(self.method_names[0] if only else "forward")(*inputs)

    def stats(self) -> Stats:
        """What the program did since it was loaded."""
        return self._recorder.snapshot()


def load(
    path_or_bytes: Source,
    data_files: Sequence[Source] = (),
    *,
    simulate_devices: bool = False,
    ordered_streams: bool | None = None,
    emulated_engines: bool | None = None,
    stand_ins: str | os.PathLike[str] | None = None,
    cuda_graphs: bool = False,
) -> Program:
    """Load a ``.pte`` to be run in this process, on torch tensors.

    ``data_files`` are the ``.ptd`` files saved beside it. ``simulate_devices`` keeps everything in
    host memory and checks that every instruction is handed tensors of the device that it works on.
    With ``ordered_streams=False`` it also checks what ExecuTorch's C++ runtime does by default: a
    delegate may run on a stream of its own, and nothing but a copy waits for it. ``True`` is a host
    that runs all delegates on one stream; ``None`` goes by what the program says that it needs.
    ``emulated_engines`` says whether the payloads of emulated TensorRT engines may be loaded;
    ``None`` asks the ``emulated_engines()`` context and ``TORCHTRT_EMULATE``. ``stand_ins`` is the
    file that was saved beside the program, of what runs where payloads can't: PyTorch programs, so
    name one only if you trust its author. Those that this process keeps are found without it.
    ``cuda_graphs`` has delegates that follow each other on a GPU captured, and launched as one CUDA
    graph from the third call with the same shapes on; the log says what can't be captured, and why.

    A ``.pte`` is untrusted input: all offsets and indices are checked, nothing is unpickled, and no
    code is run but torch's for operators that ExecuTorch has kernels for, registered kernels, and the
    payloads of delegates, which are native code or native models by design.

    Raises ``ValueError`` for ``ordered_streams`` without a simulation, ``ProgramError`` for a file
    that is damaged or incomplete, ``OSError`` for one that can't
    be read.
    """
    file = read_program(path_or_bytes, data_files)
    emulated = emulation_enabled() if emulated_engines is None else emulated_engines
    given = None if stand_ins is None else _stand_ins_for(file, stand_ins)
    if ordered_streams is not None and not simulate_devices:
        raise ValueError(
            "ordered_streams is for a simulation: give simulate_devices=True as well; delegates "
            "otherwise run on one stream"
        )
    if ordered_streams is None:
        ordered_streams = not simulate_devices or _needs_shared_stream(file)
    running = None if ordered_streams else Running()
    placement = Placement(simulate_devices, running)
    return Program(file, placement, StandIns(emulated, given), cuda_graphs)


def save_stand_ins(
    program: Source,
    path: str | os.PathLike[str],
    data_files: Sequence[Source] = (),
) -> None:
    """Write the stand-ins that this process keeps for a ``.pte``'s payloads, for another process.

    ``program`` and ``data_files`` are as :func:`load` takes them. ``path`` is written whole or not
    at all.

    Raises ``ProgramError`` if none is kept for any payload, or the program is damaged; ``OSError``
    if a file can't be read or written.
    """
    target = check_writable(path)
    kept = {
        payload: stand_in
        for payload in _payloads(read_program(program, data_files))
        if (stand_in := find(payload)) is not None
    }
    if not kept:
        raise ProgramError(
            "no stand-ins are kept for this program: a process keeps them for the payloads that it "
            "builds and can't run, and emulated engines are their own"
        )
    with staged(target) as folder:
        write(folder / target.name, kept)


def _needs_shared_stream(file: ProgramFile) -> bool:
    """Whether a delegate says so, in the compile spec that the device pass writes."""
    return any(
        spec.key == NEEDS_SHARED_STREAM
        for plan in file.program.execution_plan
        for delegate in plan.delegates
        for spec in delegate.compile_specs
    )


def _stand_ins_for(file: ProgramFile, path: str | os.PathLike[str]) -> StandInFile:
    try:
        given = StandInFile(path)
        given.check(_payloads(file))
    except ValueError as error:
        raise ProgramError(str(error)) from error
    return given


def _payloads(file: ProgramFile) -> set[str]:
    """The digests of the payloads that can have stand-ins."""
    digests = (
        Payload.of(file, plan, index).digest()
        for plan in file.program.execution_plan
        for index in range(len(plan.delegates))
    )
    return {payload for payload in digests if payload is not None}
