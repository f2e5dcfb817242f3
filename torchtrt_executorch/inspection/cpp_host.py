"""Requirements of a file's C++ host: libraries and options, as ``docs/deploying_in_cpp.md`` describes them."""

from __future__ import annotations

from collections.abc import Iterator

from torchtrt_executorch.inspection.formatting import counted, short
from torchtrt_executorch.inspection.model.facts import HOST, Facts
from torchtrt_executorch.runtime.reading import common_state


def needs(facts: Facts) -> list[tuple[str, str]]:
    """Return what a host needs, and why: things to link, to have there and to set."""
    return [*_backends(facts), *_kernels(facts), *_data(facts), *_options(facts)]


def _backends(facts: Facts) -> Iterator[tuple[str, str]]:
    delegates = [delegate for method in facts.methods for delegate in method.delegates]
    for backend in dict.fromkeys(delegate.backend for delegate in delegates):
        own = [delegate for delegate in delegates if delegate.backend == backend]
        built = ", ".join(dict.fromkeys(short(d.payload, 60) for d in own if d.payload))
        what = f"{counted(len(own), 'delegate')}{f': {built}' if built else ''}"
        yield f"backend {short(backend, 60)}", what


def _kernels(facts: Facts) -> Iterator[tuple[str, str]]:
    names = {
        s.name for m in facts.methods for s in m.instructions if s.kind == "kernel"
    }
    lacking = {m.instructions[i].name for m in facts.methods for i in m.without_kernel}
    for library, prefix in (
        ("portable or optimized", "aten::"),
        ("quantized", "quantized_"),
    ):
        if count := sum(n.startswith(prefix) for n in names - lacking):
            yield f"{library} kernels", counted(count, "operator")
    if lacking:
        yield "kernels of your own", ", ".join(
            short(n, 60) for n in sorted(lacking)[:5]
        )


def _data(facts: Facts) -> Iterator[tuple[str, str]]:
    if facts.data_files or facts.missing_data:
        yield ".ptd files", ", ".join(map(short, facts.data_files)) or "not beside it"


def _options(facts: Facts) -> Iterator[tuple[str, str]]:
    devices = {a.device for m in facts.methods for a in m.arenas} - {HOST}
    if devices:
        yield "device memory", f"planned on {', '.join(sorted(devices))}"
    if devices - {"cuda:0"}:
        yield "no CallerStreamGuard", "with a caller's stream ExecuTorch only copies to and from cuda:0"
    kinds = {need.kind for need in facts.common.needs()}
    if common_state.SHARED in kinds:
        yield "one memory for all methods", "examples/cpp/shared_memory.h"
    if common_state.IN_LIBRARIES in kinds:
        yield "option weight_sharing_across_methods", "of CudaBackend, before a method is loaded"
    if any(d.shared_stream for m in facts.methods for d in m.delegates):
        yield "one stream for all delegates", "ExecuTorch's CallerStreamGuard and Torch-TensorRT's guard"
