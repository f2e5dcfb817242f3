"""What is known of a delegate's payload from its bytes. Nothing of it is executed or unpickled."""

from __future__ import annotations

from dataclasses import replace

from torchtrt_executorch import cuda_payload, native_library
from torchtrt_executorch.cuda_library import capabilities
from torchtrt_executorch.engine_blob import deserialize_engine
from torchtrt_executorch.inspection.facts import HOST, Delegate
from torchtrt_executorch.plans import origin, targets
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.plan import NEEDS_SHARED_STREAM, Payload

_TENSORRT, _CUDA = "TensorRTBackend", "CudaBackend"


def delegate_facts(payload: Payload, index: int) -> Delegate:
    """Return what is known of delegate ``index`` of a method, by its payload."""
    known = Delegate(
        index=index,
        backend=payload.backend_id,
        device=_device(payload, HOST),
        nbytes=len(payload.payload),
        shared_stream=NEEDS_SHARED_STREAM in payload.compile_specs,
    )
    if payload.backend_id == _TENSORRT:
        return _engine(payload, known)
    if payload.backend_id == _CUDA:
        return _library(payload, replace(known, device=_device(payload, "cuda:0")))
    return known


def _device(payload: Payload, default: str) -> str:
    try:
        device = str(payload.target_device("cpu" if default == HOST else default))
    except ProgramError:
        return default
    return HOST if device == "cpu" else device


def _engine(payload: Payload, known: Delegate) -> Delegate:
    known = replace(known, owner="tensorrt")
    try:
        engine, metadata = deserialize_engine(payload.payload)
        smallest = payload.smallest_inputs()
    except ValueError as error:
        device = _device(payload, "cuda:0")
        return replace(known, device=device, damaged=str(error))
    built_by = origin(engine)
    names = {True: [], False: []}  # type: dict[bool, list[str]]
    for binding in metadata.io_bindings:
        names[binding.is_input].append(binding.name)
    return replace(
        known,
        device=_device(payload, f"cuda:{metadata.device_id}"),
        payload=built_by.text,
        inputs=tuple(names[True]),
        outputs=tuple(names[False]),
        smallest=smallest,
        gpus=targets(engine),
        emulated=built_by.text == "EMULATED",
    )


def _library(payload: Payload, known: Delegate) -> Delegate:
    method = payload.compile_specs.get("method_name", b"forward").decode(
        errors="replace"
    )
    try:
        named = cuda_payload.read(payload.payload, method)
    except cuda_payload.CudaPayloadError as error:
        return replace(known, owner="cuda", damaged=str(error))
    keys = named.keys
    held = [payload.named_data[key] for key in keys if key in payload.named_data]
    known = replace(
        known,
        owner="cuda",
        nbytes=known.nbytes + sum(len(each.held) for each in held),
        named_data=keys,
        missing=tuple(key for key in keys if key not in payload.named_data),
    )
    if keys[0] in known.missing:
        return replace(known, damaged="its library is in no file")
    libraries = [
        payload.named_data[library.key].held
        for library in named.libraries
        if library.key not in known.missing
    ]
    try:
        known = replace(known, native=native_library.read(libraries[0]))
    except native_library.NativeLibraryError as error:
        known = replace(known, damaged=f"its library is {error}")
    found = list(
        dict.fromkeys(each for held in libraries for each in capabilities(held))
    )
    machine = [name for name in found if name.startswith("sm_")]
    later = [name.replace("compute", "sm") for name in found if name not in machine]
    words = f"machine code for {', '.join(machine) or 'no GPU'}"
    for name in later:
        words += f", PTX for {name} and later"
    gpus = *machine, *(f"{name}+" for name in later)
    return replace(known, payload=words, gpus=gpus)
