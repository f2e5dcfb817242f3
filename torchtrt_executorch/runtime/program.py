"""Load a ``.pte`` and call its methods."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any, Literal, Mapping, Sequence

from torchtrt_executorch.files import check_writable, staged
from torchtrt_executorch.nogpu.emulation import emulation_enabled
from torchtrt_executorch.nogpu.stand_ins import find
from torchtrt_executorch.nogpu.stand_ins.file import StandInFile, write
from torchtrt_executorch.runtime.binding import ProgramContext
from torchtrt_executorch.runtime.calling import (
    CallLock,
    as_it_is,
    refuse_modes,
    without_modes,
)
from torchtrt_executorch.runtime.collection import uncollected
from torchtrt_executorch.runtime.delegates import StandIns, digest, inputs_of
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.method import Method
from torchtrt_executorch.runtime.plans.placement_check import needs_shared_stream
from torchtrt_executorch.runtime.plans.plan import Plan, ValueInfo
from torchtrt_executorch.runtime.plans.reader import read_plans
from torchtrt_executorch.runtime.profile.profiling import Profile
from torchtrt_executorch.runtime.profile.stats import Recorder, Stats
from torchtrt_executorch.runtime.reading.data_files import data_of
from torchtrt_executorch.runtime.reading.files import (
    ProgramFile,
    Source,
    is_path,
    read_program,
)
from torchtrt_executorch.runtime.tensors.devices import Placement
from torchtrt_executorch.runtime.tensors.memory import SharedState

logger = logging.getLogger("torchtrt_executorch.runtime")


class Program:
    """A loaded ``.pte``. Methods are prepared when they are first asked for."""

    def __init__(self, plans: Mapping[str, Plan], context: ProgramContext) -> None:
        self._plans = plans
        self._context = context
        self._lock = threading.Lock()
        self._methods: dict[str, Method] = {}
        self._shared = SharedState(plans.values(), context.file.common)
        self._call_lock = CallLock()

    @property
    def method_names(self) -> tuple[str, ...]:
        """The names of the program's methods, in the file's order."""
        return tuple(self._plans)

    @as_it_is
    def method(self, name: str = "forward") -> Method:
        """Return the method ``name``, the same object every time: its state is the program's.

        Args:
            name: One of :attr:`method_names`.

        Raises:
            ModeError: It is to be prepared within tracing, a transform or a dispatch mode.
            ProgramError: There is none, or it can't be run here.
        """
        plan = self._plan(name)
        with self._lock:
            if name not in self._methods:
                refuse_modes(f"{name} is prepared")
                call_lock = self._call_lock if self._shared else CallLock()
                prepared = plan, self._context, self._shared, call_lock
                with uncollected():
                    self._methods[name] = without_modes(lambda: Method(*prepared))
            return self._methods[name]

    def inputs(self, method: str = "forward") -> tuple[ValueInfo, ...]:
        """Return what a method takes, in order, without loading its engines.

        Raises:
            ProgramError: There is no such method.
        """
        return self._plan(method).described_inputs

    def outputs(self, method: str = "forward") -> tuple[ValueInfo, ...]:
        """Return what a method returns, in order, without loading its engines.

        Raises:
            ProgramError: There is no such method.
        """
        return self._plan(method).described_outputs

    def _plan(self, name: str) -> Plan:
        if name not in self._plans:
            raise ProgramError(
                f"no method {name!r}; the program has {', '.join(self._plans)}"
            )
        return self._plans[name]

    @as_it_is
    def run(self, *inputs: Any, **keywords: Any) -> Any:
        """Call ``forward``, or the only method that there is.

        Args:
            inputs, keywords: As :meth:`Method.__call__` takes them.

        Returns:
            The outputs, as :meth:`Method.nested` nests them: a tuple, or what the model was exported with.
        """
        only = len(self._plans) == 1
        method = self.method(self.method_names[0] if only else "forward")
        return method.nested(method(*inputs, **keywords))

    def profile(self) -> Profile:
        """Return the times since the program was loaded, with ``load(..., profile=True)``.

        ``print`` it for a table by instruction, the slowest first; :meth:`~.profiling.Profile.save`
        writes it for ExecuTorch's ``Inspector`` and for ``torchtrt-executorch inspect --times``.

        Raises ``ValueError`` if the program was loaded without.
        """
        if not self._context.profile:
            raise ValueError("nothing was timed: load the program with profile=True")
        return Profile([*self._context.recorder.histories.values()])

    def stats(self) -> Stats:
        """Return the statistics since the program was loaded."""
        return self._context.recorder.snapshot()


@as_it_is
@uncollected()
def load(
    path_or_bytes: Source,
    data_files: Sequence[Source] | None = None,
    *,
    simulate_devices: bool = False,
    ordered_streams: bool | None = None,
    emulated_engines: bool | None = None,
    stand_ins: str | os.PathLike[str] | Literal[False] | None = None,
    cuda_graphs: bool = False,
    profile: bool = False,
) -> Program:
    """Load a ``.pte`` to be run in this process, on torch tensors.

    A ``.pte`` is untrusted input: all offsets and indices are checked, nothing is unpickled, and no
    code is run but torch's for operators that ExecuTorch has kernels for, registered kernels, and the
    payloads of delegates, which are native code or native models by design.

    Args:
        path_or_bytes: The file, or what is in it.
        data_files: The ``.ptd`` files that hold its external data; ``None`` takes those beside it that do,
            by the digests that the program was saved with.
        simulate_devices: Keep everything in host memory, and check that every instruction is handed
            tensors of the device that it works on.
        ordered_streams: In a simulation, whether the host runs all delegates on one stream. ``False``
            checks what ExecuTorch's C++ runtime does by default: a delegate may run on a stream of its
            own, and nothing but a copy waits for it. ``None`` goes by what the program says it needs.
        emulated_engines: Whether the payloads of emulated TensorRT engines may be loaded; ``None`` asks
            the ``emulated_engines()`` context and ``TORCHTRT_EMULATE``.
        stand_ins: The file of what runs where payloads can't: PyTorch programs, so give one only if you
            trust its author. ``None`` takes ``model.stand_ins`` or ``model_stand_ins.zip`` beside
            ``model.pte``, if it was saved for the program's payloads; ``False`` takes no file. Those that
            this process keeps are found without one.
        cuda_graphs: Have delegates that follow each other on a GPU captured, and launched as one CUDA
            graph from the third call with the same shapes on; the log says what can't be, and why.
        profile: Time every instruction, for :meth:`Program.profile` and ``stats().timings``. Each call
            then waits for what it has left running on GPUs.

    Returns:
        The program. Its methods are prepared when they are first asked for.

    Raises:
        ValueError: ``ordered_streams`` is given without a simulation.
        ProgramError: The file is damaged or incomplete.
        OSError: It can't be read.
    """
    file = read_program(path_or_bytes, data_of(path_or_bytes, data_files))
    plans = read_plans(file, inputs_of)
    emulated = emulation_enabled() if emulated_engines is None else emulated_engines
    stand_in_file: StandInFile | None = None
    if stand_ins is None:
        stand_in_file = _stand_ins_beside(path_or_bytes, file, plans)
    elif stand_ins is not False:
        try:
            stand_in_file = StandInFile(stand_ins, file.by_digest)
            stand_in_file.check(_payloads(plans))
        except ValueError as error:
            raise ProgramError(str(error)) from error
    if ordered_streams is not None and not simulate_devices:
        raise ValueError(
            "ordered_streams is for a simulation: give simulate_devices=True as well; delegates "
            "otherwise run on one stream"
        )
    if ordered_streams is None:
        ordered_streams = not simulate_devices or needs_shared_stream(plans.values())
    placement = Placement(simulate_devices, ordered_streams)
    all_stand_ins = StandIns(emulated, stand_in_file)
    context = ProgramContext(
        file, placement, Recorder(), all_stand_ins, cuda_graphs, profile
    )
    return Program(plans, context)


def save_stand_ins(
    program: Source,
    path: str | os.PathLike[str],
    data_files: Sequence[Source] | None = None,
) -> None:
    """Write the stand-ins that this process keeps for a ``.pte``'s payloads, for another process.

    Args:
        program, data_files: As :func:`load` takes them.
        path: Path of the file, which is written atomically.

    Raises:
        ProgramError: None is kept for any payload, or the program is damaged.
        OSError: A file can't be read or written.
    """
    target = check_writable(path)
    file = read_program(program, data_of(program, data_files))
    plans = read_plans(file, inputs_of)
    stand_ins = {
        payload: stand_in
        for payload in _payloads(plans)
        if (stand_in := find(payload)) is not None
    }
    if not stand_ins:
        raise ProgramError(
            "no stand-ins are kept for this program: a process keeps them for the payloads that it "
            "builds and can't run, and emulated engines are their own"
        )
    with staged(target) as folder:
        write(folder / target.name, stand_ins, file.by_digest)


def _stand_ins_beside(
    source: Source, file: ProgramFile, plans: Mapping[str, Plan]
) -> StandInFile | None:
    """Return the stand-ins that were saved for a program's payloads, in a file that is named after it."""
    if not is_path(source):
        return None
    for path in StandInFile.named_after(Path(source)):
        try:
            stand_in_file = StandInFile(path, file.by_digest)
            stand_in_file.check(_payloads(plans))
        except (ValueError, OSError) as error:
            logger.warning(
                "stand-ins are not taken from the program's folder: %s", error
            )
        else:
            return stand_in_file
    return None


def _payloads(plans: Mapping[str, Plan]) -> set[str]:
    """Return the digests of the payloads that can have stand-ins."""
    digests = (digest(payload) for plan in plans.values() for payload in plan.delegates)
    return {payload for payload in digests if payload is not None}
