"""The TensorRT delegate, and its device-handling contract (pytorch/TensorRT#4328).

The contract stands at :meth:`TensorRTDelegate.bind`: where a tensor lives decides, not its
ahead-of-time label, so host inputs are served; the delegate stages by itself, with no device-copy
operators; and the device baked into the engine decides which GPU runs it.
"""

from __future__ import annotations

import logging
import operator
from typing import Callable, Mapping, Sequence

import torch

from torchtrt_executorch.emulation import payload as emulated
from torchtrt_executorch.engine_blob import (
    TensorRTBlobMetadata,
    deserialize_engine,
)
from torchtrt_executorch.host.builder import TENSORRT
from torchtrt_executorch.plans import origin
from torchtrt_executorch.runtime.delegates import (
    Absent,
    Delegate,
    DelegateContext,
    on_host,
)
from torchtrt_executorch.runtime.delegates.tensorrt_engine import TensorRTEngine
from torchtrt_executorch.runtime.errors import DeviceError, ProgramError
from torchtrt_executorch.runtime.layout import CPU
from torchtrt_executorch.runtime.plan import Payload
from torchtrt_executorch.runtime.soundness import Works
from torchtrt_executorch.runtime.stats import Traffic
from torchtrt_executorch.runtime.values import Value
from torchtrt_executorch.stand_ins import StandIn

logger = logging.getLogger("torchtrt_executorch.runtime")


class TensorRTDelegate(Delegate):
    """One TensorRT engine, real or emulated.

    Raises ``ProgramError`` for a blob that isn't one, whose bindings aren't the program's, or that
    this process can't run.
    """

    def __init__(
        self, context: DelegateContext, loaded: TensorRTDelegate | None = None
    ) -> None:
        self._name = context.name
        self._staged = context.recorder.staged
        engine, metadata = _engine(context)
        context.recorder.payloads[self._name] = origin(engine).text
        self._inputs = [b.name for b in metadata.io_bindings if b.is_input]
        self._outputs = [b.name for b in metadata.io_bindings if not b.is_input]
        self._num_inputs = len(self._inputs)
        if len(context.args) != len(metadata.io_bindings):
            raise ProgramError(
                f"{self._name}: the engine has {len(metadata.io_bindings)} bindings, but the "
                f"program gives it {len(context.args)} values"
            )
        self.device = torch.device("cuda", metadata.device_id)
        if self.device.index != metadata.device_id:
            # torch keeps the index in eight bits, and drops the rest without a word.
            raise ProgramError(
                f"{self._name}: the engine's GPU {metadata.device_id} is none that torch can name"
            )
        self._memory = context.placement.memory(self.device)
        self._engine: TensorRTEngine | EngineInPyTorch | Absent
        if loaded is not None and isinstance(loaded._engine, TensorRTEngine):
            self._engine = loaded._engine.clone()
        else:
            self._engine = _load(context, engine, metadata, self.device, self._memory)
        #: inputs and outputs that the engine has in host memory are at home there
        real = self._engine if isinstance(self._engine, TensorRTEngine) else None
        self._at_home = real.on_host if real else ()
        self.makes_results = real is not None
        #: where its profile begins, which TensorRT itself knows of a real one
        self._smallest = {} if real else context.smallest_inputs()

    @staticmethod
    def inputs_of(payload: Payload) -> int | None:
        """As many as the engine has; None for a damaged blob."""
        try:
            _, metadata = deserialize_engine(payload.payload)
        except ValueError:
            return None
        return sum(binding.is_input for binding in metadata.io_bindings)

    @staticmethod
    def works_on(payload: Payload) -> Works:
        """On the engine's GPU, and on what it stages from the host."""
        _, metadata = _engine(payload)
        return Works(torch.device("cuda", metadata.device_id), True)

    @staticmethod
    def parts(payload: Payload) -> tuple[memoryview]:
        """What stand-ins are found by: the serialized engine, without its metadata."""
        engine, _ = _engine(payload)
        return (engine,)

    def clone(self, context: DelegateContext) -> Delegate:
        """Another one, with the same engine and a context of its own."""
        return TensorRTDelegate(context, self)

    def bind(self, args: Sequence[Value]) -> Callable[[], None]:
        """What runs on ``args``: the inputs' values, then the outputs', in the bindings' order.

        A tensor on the engine's GPU is bound as it is; one in host memory is staged, counted, and
        logged once. Raises ``DeviceError`` for one on another GPU.
        """
        inputs, outputs = args[: self._num_inputs], args[self._num_inputs :]
        for value in args:
            if value.layout is None:
                raise ProgramError(f"{self._name} is handed {value.name}, not a tensor")
        into = self._stageable(self._inputs, inputs)
        out = self._stageable(self._outputs, outputs)
        execute = self._within_profile(inputs, self._engine.bind(inputs, outputs))
        device, name, staged = self.device, self._name, self._staged
        known = [v for v in args if v.fixed and v.device in (device, CPU)]
        others = [value for value in args if value not in known]
        steady = all(value.steady for value in args)
        always = any(value.device == CPU for value in known)
        sizes: list[Traffic] = []

        def run() -> None:
            on_host = always
            for value in others:
                if value.device != device:
                    self._check(value)
                    on_host = True
            execute()
            if on_host:
                if not sizes or not steady:
                    sizes[:] = _on_host(into), _on_host(out)
                if (sizes[0].copies or sizes[1].copies) and staged(name, *sizes):
                    self._say(into, out)

        return run

    def _within_profile(
        self, inputs: Sequence[Value], execute: Callable[[], None]
    ) -> Callable[[], None]:
        """``execute``, with inputs that TensorRT wouldn't refuse as too small."""
        bounded = [
            (name, value, self._smallest[name])
            for name, value in zip(self._inputs, inputs, strict=True)
            if name in self._smallest
        ]

        def run() -> None:
            for name, value, smallest in bounded:
                shape = value.tensor.shape
                if any(map(operator.lt, shape, smallest)):
                    raise ProgramError(
                        f"{self._name} was not built for {name} of shape {list(shape)}: its "
                        f"profile begins at {list(smallest)}"
                    )
            execute()

        return run if bounded else execute

    def not_capturable(self, args: Sequence[Value]) -> str | None:
        """Why a CUDA graph can't hold a call with ``args``, or None if it can."""
        if not isinstance(self._engine, TensorRTEngine):
            return "what runs here is no engine"
        if self._at_home:
            return f"the engine has {', '.join(sorted(self._at_home))} in host memory"
        return on_host(args)

    def _check(self, value: Value) -> None:
        if value.device not in (self.device, CPU):
            raise DeviceError(
                f"{value.name} lives on {value.device}, but the engine of {self._name} runs on "
                f"{self.device}: the device is baked into the engine, and moving a tensor from "
                "one GPU to another is the program's to do"
            )

    def _stageable(
        self, names: Sequence[str], values: Sequence[Value]
    ) -> dict[str, Value]:
        """What has to be moved where it is in host memory, by the engine's name for it."""
        pairs = zip(names, values, strict=True)
        return {name: value for name, value in pairs if name not in self._at_home}

    def _say(self, into: Mapping[str, Value], out: Mapping[str, Value]) -> None:
        """Log what is staged."""
        staged = []
        for role, values in (("inputs", into), ("outputs", out)):
            sizes = [
                f"{name} ({value.data.nbytes} bytes)"
                for name, value in values.items()
                if value.device == CPU
            ]
            if sizes:
                staged.append(f"{role} {', '.join(sizes)}")
        logger.info(
            "TensorRT engine %s on %s stages host I/O on every call: %s. To bind without a "
            "copy, export with enable_non_cpu_memory_planning=True and, for the method's own "
            "inputs and outputs, skip_h2d_for_method_inputs=True and "
            "skip_d2h_for_method_outputs=True, and pass tensors on %s. "
            "Said once per engine; stats() keeps counting.",
            self._name,
            self.device,
            "; ".join(staged),
            self.device,
        )


def _on_host(values: Mapping[str, Value]) -> Traffic:
    """Copies of those that are in host memory."""
    return Traffic.of([v.data.nbytes for v in values.values() if v.device == CPU])


def _engine(payload: Payload) -> tuple[memoryview, TensorRTBlobMetadata]:
    try:
        return deserialize_engine(payload.payload)
    except ValueError as error:
        raise ProgramError(f"{payload.name}: {error}") from error


def _load(
    context: DelegateContext,
    engine: memoryview,
    metadata: TensorRTBlobMetadata,
    device: torch.device,
    memory: torch.device,
) -> TensorRTEngine | EngineInPyTorch | Absent:
    if emulated.is_emulated(engine):
        if not context.stand_ins.emulated:
            raise ProgramError(
                f"{context.name} is an emulated engine: a PyTorch program, which a file should "
                "only bring if you trust its author. Allow it with load(..., "
                "emulated_engines=True), inside of emulated_engines(), or TORCHTRT_EMULATE=1"
            )
        try:
            program = emulated.load(engine)
            return EngineInPyTorch(context.name, program, metadata, memory)
        except ValueError as error:
            raise ProgramError(f"{context.name}: {error}") from error
    stand_in = context.stand_in()
    if stand_in is not None:
        return EngineInPyTorch(context.name, stand_in, metadata, memory)
    if context.placement.stands_in:
        built_by = origin(engine)
        product = TENSORRT if built_by.builder is None else built_by.builder
        return Absent(
            context,
            f"a CUDA device and {product.name} for its engine, by {built_by.text}",
        )
    return TensorRTEngine(context.name, engine, metadata, device, context.args)


class EngineInPyTorch:
    """The partition's own program, run by PyTorch: an emulated engine, or a stand-in for a real one.

    Like an engine it is bound by name: the delegate's arguments are in the blob's order. Raises
    ``ProgramError`` if the blob binds other names.
    """

    def __init__(
        self,
        name: str,
        program: StandIn,
        metadata: TensorRTBlobMetadata,
        memory: torch.device,
    ) -> None:
        self._program = program
        self._memory = memory
        given = [b.name for b in metadata.io_bindings if b.is_input]
        wanted = [b.name for b in metadata.io_bindings if not b.is_input]
        if {*given} != {*self._program.inputs} or {*wanted} != {*self._program.outputs}:
            raise ProgramError(
                f"{name}: the blob binds {given} and {wanted}, the engine's program has "
                f"{list(self._program.inputs)} and {list(self._program.outputs)}"
            )
        self._inputs = [given.index(name) for name in self._program.inputs]
        self._outputs = [wanted.index(name) for name in self._program.outputs]

    def bind(
        self, inputs: Sequence[Value], outputs: Sequence[Value]
    ) -> Callable[[], None]:
        """What runs on values in the order of the blob's bindings."""

        def run() -> None:
            results = self._program(
                [inputs[index].tensor.to(self._memory) for index in self._inputs]
            )
            for index, result in zip(self._outputs, results, strict=True):
                outputs[index].write(result)

        return run
