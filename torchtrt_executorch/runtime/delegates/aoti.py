"""Delegate of ``CudaBackend``: run an AOTInductor library by PyTorch's runner."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import tempfile
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

import torch

from torchtrt_executorch.payloads import cuda_payload
from torchtrt_executorch.payloads.cuda_library import capabilities
from torchtrt_executorch.payloads.cuda_payload import CudaPayload, Weight
from torchtrt_executorch.runtime.delegates import DelegateContext
from torchtrt_executorch.runtime.delegates.on_gpu import (
    GpuDelegate,
    InPyTorch,
    stand_in_for,
)
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.plans.plan import BackendInfo, Payload
from torchtrt_executorch.runtime.reading.schemas import schema
from torchtrt_executorch.runtime.tensors.devices import current_on, is_current
from torchtrt_executorch.runtime.tensors.layout import ALIGNMENT, CPU, dtype_of
from torchtrt_executorch.runtime.tensors.values import Run, Value

Compute = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


class AotiDelegate(GpuDelegate):
    """One AOTInductor library and its weights, on ``target_device``: ``cuda:0`` unless it is given.

    Only takes tensors on that device: copies are the program's to make, but where nothing is planned on
    a device, as before executorch 1.4. Loading it executes native code from the file. Raises
    ``ProgramError`` if the library or its weights are missing, or can't be loaded.
    """

    def __init__(self, context: DelegateContext) -> None:
        super().__init__(context)
        payload = read_payload(context)
        library = _library(context, payload)
        if gpus := capabilities(library):
            built_by = f"AOTInductor for {', '.join(gpus)}"
            context.recorder.payloads[self.name] = built_by
        if self.device.type == "cuda" and context.placement.in_host_memory:
            self.runner = InPyTorch(stand_in_for(context, "a CUDA device"), CPU)
        else:
            loaded = _load(context, payload, library, self.device)
            self.runner = _Library(self.name, loaded.run, self.device)
            self.makes_results = True

    @staticmethod
    def about(payload: Payload) -> BackendInfo:
        """It works only on its GPU; stand-ins are found by the digests of what it names."""
        named = read_payload(payload)
        return BackendInfo(
            payload.target_device("cuda:0"),
            takes_host=False,
            digests=lambda: tuple(map(payload.digest, named.keys)),
        )


class _Library:
    """A library that was loaded."""

    def __init__(self, name: str, run: Compute, device: torch.device) -> None:
        self._name = name
        self._compute = run if device.type == "cpu" else _on_gpu(run, device)

    def bind(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> Run:
        """Return a function that runs on these values."""
        compute = self._compute
        #: how each output takes its result; unknown before the first run
        hand_overs: list[Callable[[torch.Tensor], None]] = []

        def run() -> None:
            tensors = [value.tensor for value in inputs]
            results = compute(tensors)
            if not hand_overs:
                # A result may be an input's memory; a library always hands the same ones through.
                memory = {tensor.untyped_storage().data_ptr() for tensor in tensors}
                shared = [r.untyped_storage().data_ptr() in memory for r in results]
                pairs = zip(outputs, shared, strict=False)
                hand_overs[:] = [
                    value.write if its else value.take for value, its in pairs
                ]
            if len(results) != len(outputs):
                raise ProgramError(
                    f"{self._name} returned {len(results)} tensors, and the program wants "
                    f"{len(outputs)}"
                )
            for hand_over, result in zip(hand_overs, results, strict=True):
                hand_over(result)

        return run


def read_payload(context: Payload) -> CudaPayload:
    """Parse the payload. Raises ``ProgramError`` if it is damaged."""
    try:
        return cuda_payload.read(context.payload)
    except ValueError as error:
        raise ProgramError(f"{context.name}: {error}") from error


def _library(context: DelegateContext, payload: CudaPayload) -> memoryview:
    """Return the library for the GPU that is here; the first one where none is."""
    gpu, device = None, context.target_device("cuda:0")
    if torch.cuda.is_available() and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        gpu = 10 * major + minor
    library = payload.library_for(gpu)
    if library is None:
        there = ", ".join(f"sm_{library.gpu}" for library in payload.libraries)
        raise ProgramError(
            f"{context.name}: its libraries are for {there}, and this GPU is sm_{gpu}"
        )
    return context.data(library.key)


def _on_gpu(run: Compute, device: torch.device) -> Compute:
    """``run`` on ``device``, on tensors that are there, and where its kernels were built for."""
    gpu: int = device.index

    def compute(tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        for index, tensor in enumerate(tensors):
            if not tensor.is_cuda:
                tensors[index] = tensor.to(device)
            elif tensor.data_ptr() % ALIGNMENT:
                tensors[index] = tensor.clone()
        if is_current(gpu):
            return run(tensors)
        with current_on(device):
            return run(tensors)

    return compute


def _load(
    context: DelegateContext,
    payload: CudaPayload,
    library: memoryview,
    device: torch.device,
) -> Any:
    with tempfile.TemporaryDirectory(prefix="torchtrt-executorch-") as folder:
        blob = Path(folder, "weights.blob")
        try:
            with current_on(device) if device.type == "cuda" else nullcontext():
                model = _runner(_path(library), device)
                # Without its weights the library reads memory that was never allocated.
                if payload.blob is None:
                    _give(model, context, payload, device)
                elif not _share_all(model, context, (payload.blob, device)):
                    if len(weights := context.data(payload.blob)):
                        blob.write_bytes(weights)
                        model.update_constant_buffer_from_blob(str(blob))
                    _share_state(model, context, (payload.blob, device))
        except (RuntimeError, ProgramError) as error:
            raise ProgramError(
                f"{context.name}: the library can't be loaded: {error}"
            ) from error
    return model


def _share_all(model: Any, context: DelegateContext, source: object) -> bool:
    """Share another delegate's weights and buffers, if it has all of these: they are on the GPU once."""
    theirs = context.common.weights.get(source, {})
    wanted = model.get_constant_names_to_original_fqns()
    if not context.common.names or not {*wanted.values()} <= theirs.keys():
        return False
    _point(model, theirs)
    return True


def _share_state(model: Any, context: DelegateContext, source: object) -> None:
    """Share the buffers that methods have in common with another delegate's; later ones may share all of these."""
    if not context.common.names:
        return
    own = model.extract_constants_map(False)
    common = context.common.join(own)
    context.common.weights.setdefault(source, {**own, **common})
    context.common.owners.append(model)  # the memory is its own
    _point(model, {n: tensor for n, tensor in common.items() if tensor is not own[n]})


def _point(model: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Set a library's constants to ``tensors``, by their names in the model."""
    wanted = model.get_constant_names_to_original_fqns()
    constants = {name: tensors[fqn] for name, fqn in wanted.items() if fqn in tensors}
    if constants:
        model.update_constant_buffer(constants, False, False, True)


def _give(
    model: Any, context: DelegateContext, payload: CudaPayload, device: torch.device
) -> None:
    """Set the library's weights by name: its own copies, unless methods share them."""
    common, weights = context.common, {}
    for weight in payload.weights:
        place = device if weight.on_gpu else CPU
        # Buffers of the same bytes have one key, and are written to.
        shared = common.weights.setdefault((weight, place), {}) if common.names else {}
        if weight.name not in shared:
            shared[weight.name] = _tensor(context, weight, place)
        weights[weight.name] = shared[weight.name]
    weights.update(common.join(weights))
    wanted = model.get_constant_names_to_original_fqns()
    missing = sorted(set(wanted.values()) - weights.keys())
    if missing:
        raise ProgramError(
            f"{context.name}: the library wants the weight {missing[0]!r}, which its payload doesn't name"
        )
    named = {name: weights[original] for name, original in wanted.items()}
    model.update_constant_buffer(named, False, False, bool(common.names))


def _tensor(
    context: DelegateContext, weight: Weight, device: torch.device
) -> torch.Tensor:
    data = context.data(weight.key)
    if len(data) != weight.nbytes:
        raise ProgramError(
            f"{context.name}: the weight {weight.name!r} has {len(data)} bytes, and {weight.nbytes} are due"
        )
    dtype = dtype_of(schema.ScalarType(weight.dtype))
    if dtype is None:
        raise ProgramError(
            f"{context.name}: the weight {weight.name!r} has dtype {weight.dtype}, which is none"
        )
    flat = torch.frombuffer(data or bytearray(8), dtype=dtype)
    return flat.to(device).as_strided(weight.sizes, weight.strides, weight.offset)


#: Descriptors of libraries in memory, by digest: PyTorch's loader unloads none, and maps one file once.
_descriptors: dict[bytes, int] = {}
_descriptors_lock = threading.Lock()


def _path(library: memoryview) -> str:
    """Return a path that the loader takes, the same for the same library."""
    digest = hashlib.sha256(library).digest()
    with _descriptors_lock:
        if digest not in _descriptors:
            descriptor = os.memfd_create("model.wrapper.so")
            with open(descriptor, "wb", closefd=False) as file:
                file.write(library)
            _descriptors[digest] = descriptor
        return f"/proc/self/fd/{_descriptors[digest]}"


def _runner(library: str, device: torch.device) -> Any:
    if device.type == "cpu":
        return torch._C._aoti.AOTIModelContainerRunnerCpu(library, 1)
    _export_torch_symbols()
    make: Any = torch._C._aoti.AOTIModelContainerRunnerCuda
    # Calls don't overlap here: without events of its own the library can be captured in a CUDA graph.
    alone = True
    return make(library, 1, str(device), "", alone)


@functools.lru_cache(maxsize=1)
def _export_torch_symbols() -> None:
    """Export ``aoti_torch_*`` to the library, which isn't linked against torch."""
    folder = Path(torch.__file__).parent / "lib"
    for library in ("libtorch_cpu.so", "libtorch_cuda.so"):
        ctypes.CDLL(str(folder / library), mode=ctypes.RTLD_GLOBAL)
