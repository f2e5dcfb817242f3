"""Facts of a delegate's payload, read from its bytes; nothing is executed or unpickled."""

from __future__ import annotations

from dataclasses import replace

import torch

from torchtrt_executorch.inspection.model.facts import HOST, Delegate
from torchtrt_executorch.payloads import native_library
from torchtrt_executorch.payloads.cuda_library import kernels, names_of
from torchtrt_executorch.payloads.engine_blob import deserialize_engine
from torchtrt_executorch.payloads.engine_header import EMULATED, targets
from torchtrt_executorch.runtime.delegates import about
from torchtrt_executorch.runtime.delegates.aoti import read_payload
from torchtrt_executorch.runtime.plans.plan import NEEDS_SHARED_STREAM, Payload

_OWNERS = {"TensorRTBackend": "tensorrt", "CudaBackend": "cuda"}


def delegate_facts(payload: Payload, index: int) -> Delegate:
    """Return the facts of delegate ``index`` of a method, from its payload."""
    known = Delegate(
        index=index,
        backend=payload.backend_id,
        device=HOST,
        nbytes=len(payload.payload),
        shared_stream=NEEDS_SHARED_STREAM in payload.compile_specs,
        owner=_OWNERS.get(payload.backend_id, "other"),
    )
    try:
        if known.owner != "other":  # whatever else its bytes say, if they can be read
            known = replace(known, device=shown(payload.target_device("cuda:0")))
        told = about(payload)
        known = replace(known, device=shown(told.device), payload=told.built_by)
        if known.owner == "tensorrt":
            return _engine(payload, known)
        return _library(payload, known) if known.owner == "cuda" else known
    except ValueError as error:  # another backend of that id may be registered
        return replace(known, damaged=str(error.__cause__ or error))


def shown(device: torch.device) -> str:
    """Return a device as the program numbers it."""
    return HOST if device.type == "cpu" else f"{device.type}:{device.index or 0}"


def _engine(payload: Payload, known: Delegate) -> Delegate:
    engine, metadata = deserialize_engine(payload.payload)
    return replace(
        known,
        inputs=tuple(b.name for b in metadata.io_bindings if b.is_input),
        outputs=tuple(b.name for b in metadata.io_bindings if not b.is_input),
        smallest=payload.smallest_inputs(),
        optimal=payload.optimal_inputs(),
        gpus=targets(engine),
        emulated=known.payload == EMULATED,
    )


def _library(payload: Payload, known: Delegate) -> Delegate:
    named = read_payload(payload)
    keys = named.keys
    entries = [payload.named_data[key] for key in keys if key in payload.named_data]
    known = replace(
        known,
        nbytes=known.nbytes + sum(len(entry.file_bytes) for entry in entries),
        named_data=keys,
        missing=tuple(key for key in keys if key not in payload.named_data),
    )
    if keys[0] in known.missing:
        return replace(known, damaged="its library is in no file")
    libraries = [
        payload.named_data[library.key].file_bytes
        for library in named.libraries
        if library.key not in known.missing
    ]
    try:
        known = replace(known, native=native_library.read(libraries[0]))
    except native_library.NativeLibraryError as error:
        known = replace(known, damaged=f"its library is {error}")
    compiled = tuple(tuple(kernels(library_bytes)) for library_bytes in libraries)
    all_kernels = [kernel for library in compiled for kernel in library]
    for kernel in all_kernels:
        if kernel.damaged:
            return replace(known, damaged=f"kernel {kernel.name}: {kernel.damaged}")
    targets = names_of(all_kernels)
    machine = [name for name in targets if name.startswith("sm_")]
    later = [name.replace("compute", "sm") for name in targets if name not in machine]
    text = f"machine code for {', '.join(machine) or 'no GPU'}"
    for name in later:
        text += f", PTX for {name} and later"
    gpus = *machine, *(f"{name}+" for name in later)
    return replace(known, payload=text, gpus=gpus, kernels=compiled)
