"""Load a ``.pte`` and call its methods."""

from __future__ import annotations

import threading
from typing import Any, Sequence

from executorch.exir import schema

from torchtrt_executorch.emulation import emulation_enabled
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.files import ProgramFile, Source, read_program
from torchtrt_executorch.runtime.method import Method
from torchtrt_executorch.runtime.placement import Placement
from torchtrt_executorch.runtime.stats import Recorder, Stats


class Program:
    """A loaded ``.pte``. Methods are prepared when they are first asked for."""

    def __init__(self, file: ProgramFile, placement: Placement, emulate: bool) -> None:
        self._file = file
        self._placement = placement
        self._emulate = emulate
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
                    self._emulate,
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
    emulated_engines: bool | None = None,
) -> Program:
    """Load a ``.pte`` to be run in this process, on torch tensors.

    ``data_files`` are the ``.ptd`` files saved beside it. ``simulate_devices`` keeps everything in
    host memory and checks that every instruction is handed tensors of the device that it works on.
    ``emulated_engines`` says whether the payloads of emulated TensorRT engines may be loaded;
    ``None`` asks the ``emulated_engines()`` context and ``TORCHTRT_EMULATE``.

    A ``.pte`` is untrusted input: all offsets and indices are checked, nothing is unpickled, and no
    code is run but torch's out-variants, registered kernels, and the payloads of delegates, which
    are native code or native models by design.

    Raises ``ProgramError`` for a file that is damaged or incomplete, ``OSError`` for one that can't
    be read.
    """
    file = read_program(path_or_bytes, data_files)
    emulate = emulation_enabled() if emulated_engines is None else emulated_engines
    return Program(file, Placement(simulate_devices), emulate)
