"""The delegate of ``CudaBackend``: a library that AOTInductor built, run by PyTorch's own runner."""

from __future__ import annotations

import ctypes
import functools
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Sequence

import torch

from torchtrt_executorch.cuda_library import capabilities
from torchtrt_executorch.runtime.delegates import DelegateContext, Payload, on_host
from torchtrt_executorch.runtime.delegates.absent import AbsentPayload
from torchtrt_executorch.runtime.devices import current_on
from torchtrt_executorch.runtime.errors import DeviceError, ProgramError
from torchtrt_executorch.runtime.values import Value, nbytes
from torchtrt_executorch.stand_ins import StandIn

#: What Inductor takes for granted of an input's address.
ALIGNMENT = 16


class AotiDelegate:
    """One AOTInductor library and its weights, on ``target_device``: ``cuda:0`` unless it is given.

    Takes tensors on that device alone: copies are the program's to make. Loading it executes native
    code from the file. Raises ``ProgramError`` if the library or its weights are missing, or can't
    be loaded.
    """

    def __init__(self, context: DelegateContext) -> None:
        self._name = context.name
        self.device = context.target_device("cuda:0")
        self.num_inputs = context.num_inputs
        self._recorder = context.recorder
        library, weights = _blobs(context)
        if gpus := capabilities(library):
            built_by = f"AOTInductor for {', '.join(gpus)}"
            context.recorder.loaded(self._name, built_by)
        #: which results are an input's memory; a library always hands the same ones through
        self._handed_through: list[bool] | None = None
        self._model: Any | StandIn | AbsentPayload
        if self.device.type == "cuda" and context.placement.stands_in:
            self._model = context.stand_in() or AbsentPayload(context, "a CUDA device")
        else:
            self._model = _load(context.name, library, weights, self.device)

    @staticmethod
    def parts(payload: Payload) -> tuple[memoryview, memoryview]:
        """The library and its weights, which the payload names."""
        return _blobs(payload)

    def execute(self, args: Sequence[Value]) -> None:
        """Run on ``args``. Raises ``DeviceError`` for a tensor that isn't on the delegate's device."""
        outputs = args[self.num_inputs :]
        elsewhere = [
            value
            for value in args
            if value.layout is not None and value.device != self.device
        ]
        if elsewhere:
            self._serve(elsewhere, outputs)
        if isinstance(self._model, AbsentPayload):
            self._model.run(outputs)
            return
        inputs = [value.tensor for value in args[: self.num_inputs]]
        results = self._run(self._model, inputs)
        if len(results) != len(outputs):
            raise ProgramError(
                f"{self._name} returned {len(results)} tensors, and the program wants "
                f"{len(outputs)}"
            )
        if self._handed_through is None or isinstance(self._model, StandIn):
            given = {tensor.untyped_storage().data_ptr() for tensor in inputs}
            self._handed_through = [
                result.untyped_storage().data_ptr() in given for result in results
            ]
        for output, result, is_given in zip(
            outputs, results, self._handed_through, strict=True
        ):
            if is_given:
                output.write(result)
            else:
                output.take(result)

    def not_capturable(self, args: Sequence[Value]) -> str | None:
        """Why a CUDA graph can't hold a call with ``args``, or None if it can."""
        if isinstance(self._model, (StandIn, AbsentPayload)):
            return "what runs here is no library"
        return on_host(args)

    def _run(self, model: Any, inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        results: Sequence[torch.Tensor]
        if isinstance(model, StandIn):
            return model(inputs)
        if self.device.type == "cpu":
            results = model.run(inputs)
            return results
        with current_on(self.device):
            for index, tensor in enumerate(inputs):
                if not tensor.is_cuda:
                    inputs[index] = tensor.to(self.device)
                elif tensor.data_ptr() % ALIGNMENT:
                    inputs[index] = (
                        tensor.clone()
                    )  # its kernels were built for aligned ones
            results = model.run(inputs)
        return results

    def _serve(self, elsewhere: Sequence[Value], outputs: Sequence[Value]) -> None:
        """Count what is in host memory because nothing is planned on a device: it is moved here.

        So does the backend of executorch 1.3, whose programs are planned so.
        """
        sizes: tuple[list[int], list[int]] = [], []
        for value in elsewhere:
            if value.device.type != "cpu" or value.label is not None:
                raise DeviceError(
                    f"{value.name} lives on {value.device}, and {self._name} takes tensors on "
                    f"{self.device} alone: a copy (et_copy::_h2d_copy) is missing, or the tensor "
                    "is mislabelled"
                )
            sizes[value in outputs].append(nbytes(value.tensor))
        self._recorder.staged(self._name, *sizes)


def _blobs(context: Payload) -> tuple[memoryview, memoryview]:
    """The library and the weights: keys in the payload, or after the method's name (1.3)."""
    try:
        keys = str(context.payload, "utf-8").split("\n")
        method = context.compile_specs.get("method_name", b"forward").decode()
    except UnicodeDecodeError as error:
        raise ProgramError(
            f"{context.name}: the payload names no data: {error}"
        ) from None
    if keys == [""]:
        keys = [f"{method}_so_blob", f"{method}_weights_blob"]
    if len(keys) != 2:
        raise ProgramError(
            f"{context.name}: the payload names {len(keys)} blobs; a library and weights are due"
        )
    return context.data(keys[0]), context.data(keys[1])


def _load(
    name: str, library: memoryview, weights: memoryview, device: torch.device
) -> Any:
    with tempfile.TemporaryDirectory(prefix="torchtrt-executorch-") as folder:
        # The loader maps the library for good; its file may go once it is loaded.
        so, blob = Path(folder, "model.wrapper.so"), Path(folder, "weights.blob")
        so.write_bytes(library)
        blob.write_bytes(weights)
        try:
            with current_on(device) if device.type == "cuda" else nullcontext():
                model = _runner(so, device)
                # Without its weights the library reads memory that was never allocated.
                if len(weights):
                    model.update_constant_buffer_from_blob(str(blob))
        except RuntimeError as error:
            raise ProgramError(
                f"{name}: the library can't be loaded: {error}"
            ) from error
    return model


def _runner(library: Path, device: torch.device) -> Any:
    if device.type == "cpu":
        return torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)
    _export_torch_symbols()
    make: Any = torch._C._aoti.AOTIModelContainerRunnerCuda
    # Calls don't overlap here: without events of its own the library can be captured in a CUDA graph.
    alone = True
    return make(str(library), 1, str(device), str(library.parent), alone)


@functools.lru_cache(maxsize=1)
def _export_torch_symbols() -> None:
    """Let the library, which isn't linked against torch, find ``aoti_torch_*``."""
    folder = Path(torch.__file__).parent / "lib"
    for library in ("libtorch_cpu.so", "libtorch_cuda.so"):
        ctypes.CDLL(str(folder / library), mode=ctypes.RTLD_GLOBAL)
