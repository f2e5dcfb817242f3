"""executorch 1.3 stores one library per method name: a second partition is refused early."""

from __future__ import annotations

import pytest
import torch
from executorch.backends.aoti.aoti_partitioner import AotiPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from torch.export import export

from torchtrt_executorch.overlay.upstream import load_upstream
from torchtrt_executorch.patches.executorch.backends.aoti import _aoti_backend_patch

aoti_backend = load_upstream("executorch.backends.aoti.aoti_backend")
_aoti_backend_patch.apply(aoti_backend)
compiled: list[str] = []


class OneLibraryTestBackend(aoti_backend.AotiBackend, BackendDetails):
    """An AOTInductor-driven backend, as ``CudaBackend`` is one, that compiles nothing."""

    @classmethod
    def preprocess(cls, edge_program, compile_specs):
        compiled.append(cls.method_name_from_compile_specs(compile_specs))
        return PreprocessResult(processed_bytes=b"library")

    get_device_name = get_supported_fallback_kernels = get_decomposition_table = None
    get_aoti_compile_options = get_custom_passes = None


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sin(torch.relu(x)) * 2


def lower(foreign, methods, *operators):
    """Lower ``methods``, a dict from method name to the name in its compile spec."""
    compiled.clear()
    program = export(Model(), (torch.ones(3),))
    spec = OneLibraryTestBackend.generate_method_name_compile_spec
    partitioners = {
        method: [
            foreign(*operators),
            AotiPartitioner("OneLibraryTestBackend", [spec(name)]),
        ]
        for method, name in methods.items()
    }
    programs = {method: program for method in methods}
    return to_edge_transform_and_lower(programs, partitioner=partitioners)


def test_two_partitions_in_a_method_are_refused_before_any_is_compiled(foreign):
    with pytest.raises(NotImplementedError) as error:
        lower(foreign, {"decode": "decode"}, "sin")
    message = str(error.value)
    for part in ("'decode'", "2 OneLibraryTestBackend partitions", "executorch 1.4"):
        assert part in message
    assert not compiled


def test_two_methods_under_one_name_are_refused(foreign):
    with pytest.raises(NotImplementedError, match="'forward' has 2 "):
        lower(foreign, {"prefill": "forward", "decode": "forward"})


def test_one_partition_in_each_method_is_compiled(foreign):
    lower(foreign, {"prefill": "prefill", "decode": "decode"})
    assert sorted(compiled) == ["decode", "prefill"]
