"""The TensorRT delegate, and its device-handling contract (pytorch/TensorRT#4328).

The contract stands at :meth:`GpuDelegate.bind`: where a tensor lives decides, not its ahead-of-time
label, so host inputs are served; the delegate stages by itself, with no device-copy operators; and the
device baked into the engine decides which GPU runs it.
"""

from __future__ import annotations

import operator
from copy import copy
from hashlib import sha256
from typing import Sequence

import torch

from torchtrt_executorch.nogpu.builder.installed import TENSORRT
from torchtrt_executorch.nogpu.emulation import payload as emulated
from torchtrt_executorch.nogpu.stand_ins import StandIn
from torchtrt_executorch.payloads.engine_blob import (
    TensorRTBlobMetadata,
    deserialize_engine,
)
from torchtrt_executorch.payloads.engine_header import origin
from torchtrt_executorch.runtime.delegates import Delegate, DelegateContext
from torchtrt_executorch.runtime.delegates.on_gpu import (
    GpuDelegate,
    InPyTorch,
    Runner,
    stand_in_for,
)
from torchtrt_executorch.runtime.delegates.tensorrt_engine import TensorRTEngine
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.plans.plan import BackendInfo, Payload
from torchtrt_executorch.runtime.tensors.values import Run, Value


class TensorRTDelegate(GpuDelegate):
    """One TensorRT engine, real or emulated.

    Raises ``ProgramError`` for a blob that isn't one, whose bindings aren't the program's, or that
    this process can't run.
    """

    def __init__(self, context: DelegateContext) -> None:
        super().__init__(context)
        engine, metadata = _engine(context)
        self._inputs, outputs = _names(metadata)
        self.names = *self._inputs, *outputs
        if len(context.args) != len(self.names):
            raise ProgramError(
                f"{self.name}: the engine has {len(self.names)} bindings, but the program gives it "
                f"{len(context.args)} values"
            )
        self.num_inputs = len(self._inputs)
        self._emulated = emulated.is_emulated(engine)
        self.runner: Runner = _load(context, engine, metadata, self.device)
        #: where its profile begins, which TensorRT itself knows of a real one
        self._smallest = context.smallest_inputs()
        if isinstance(self.runner, TensorRTEngine):
            self.at_home, self.makes_results = self.runner.on_host, True
            self._smallest = {}

    @staticmethod
    def about(payload: Payload) -> BackendInfo:
        """It works on the engine's GPU, and on what it stages from the host.

        Stand-ins are found by the serialized engine, without its metadata.
        """
        engine, metadata = _engine(payload)
        device = torch.device("cuda", metadata.device_id)
        if device.index != metadata.device_id:
            # torch keeps the index in eight bits, and drops the rest without a word.
            raise ProgramError(
                f"{payload.name}: the engine's GPU {metadata.device_id} is none that torch can name"
            )
        num_inputs, built_by = len(_names(metadata)[0]), origin(engine).text
        return BackendInfo(
            device, True, num_inputs, built_by, lambda: (sha256(engine).digest(),)
        )

    def clone(self, context: DelegateContext) -> Delegate:
        """Another one, with the same engine and a context of its own; an emulated one has its weights."""
        shareable = InPyTorch if self._emulated else TensorRTEngine
        runner = self.runner.clone() if isinstance(self.runner, shareable) else None
        if runner is None:
            return super().clone(context)
        clone = copy(self)
        clone.runner = runner
        return clone

    def bind(self, args: Sequence[Value]) -> Run:
        """As :meth:`GpuDelegate.bind`, on inputs that TensorRT wouldn't refuse as too small."""
        execute = super().bind(args)
        bounded = [
            (name, value, self._smallest[name])
            for name, value in zip(self._inputs, args, strict=False)
            if name in self._smallest
        ]

        def run() -> None:
            for name, value, smallest in bounded:
                shape = value.tensor.shape
                if any(map(operator.lt, shape, smallest)):
                    raise ProgramError(
                        f"{self.name} was not built for {name} of shape {list(shape)}: its "
                        f"profile begins at {list(smallest)}"
                    )
            execute()

        return run if bounded else execute


def _engine(payload: Payload) -> tuple[memoryview, TensorRTBlobMetadata]:
    try:
        return deserialize_engine(payload.payload)
    except ValueError as error:
        raise ProgramError(f"{payload.name}: {error}") from error


def _names(metadata: TensorRTBlobMetadata) -> tuple[list[str], list[str]]:
    """Return the engine's names of its inputs and outputs."""
    inputs = [b.name for b in metadata.io_bindings if b.is_input]
    return inputs, [b.name for b in metadata.io_bindings if not b.is_input]


def _load(
    context: DelegateContext,
    engine: memoryview,
    metadata: TensorRTBlobMetadata,
    device: torch.device,
) -> Runner:
    memory = context.placement.memory(device)
    if emulated.is_emulated(engine):
        if not context.stand_ins.emulated:
            raise ProgramError(
                f"{context.name} is an emulated engine: a PyTorch program, which a file should "
                "only bring if you trust its author. Allow it with load(..., "
                "emulated_engines=True), inside of emulated_engines(), or TORCHTRT_EMULATE=1"
            )
        try:
            program: StandIn | None = emulated.load(engine)
        except ValueError as error:
            raise ProgramError(f"{context.name}: {error}") from error
    elif context.placement.in_host_memory:
        built_by = origin(engine)
        product = (built_by.builder or TENSORRT).name
        needs = f"a CUDA device and {product} for its engine, by {built_by.text}"
        program = stand_in_for(context, needs)
    else:
        return TensorRTEngine(context.name, engine, metadata, device, context.args)
    if program is None:
        return InPyTorch(None, memory)
    # By name, as an engine is bound: the delegate's arguments are in the blob's order.
    bound_inputs, wanted = _names(metadata)
    if {*bound_inputs} != {*program.inputs} or {*wanted} != {*program.outputs}:
        raise ProgramError(
            f"{context.name}: the blob binds {bound_inputs} and {wanted}, the engine's program has "
            f"{list(program.inputs)} and {list(program.outputs)}"
        )
    inputs = [bound_inputs.index(name) for name in program.inputs]
    outputs = [wanted.index(name) for name in program.outputs]
    return InPyTorch(program, memory, inputs, outputs)
