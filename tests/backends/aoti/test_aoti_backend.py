"""Stacked partitions compiled by the real AOTInductor, for the CPU, and run from its libraries."""

from __future__ import annotations

import shutil

import pytest
import torch
from executorch.backends.aoti.aoti_backend import AotiBackend
from executorch.backends.aoti.aoti_partitioner import AotiPartitioner
from executorch.exir.backend.backend_details import BackendDetails
from executorch.exir.delegate import executorch_call_delegate

from ...lowering import BaseModel, lower

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("g++"), reason="AOTInductor needs a compiler"),
]


class CpuAotiTestBackend(AotiBackend, BackendDetails):
    """AOTInductor for the CPU, with the options that ``CudaBackend`` packages libraries by."""

    @classmethod
    def get_device_name(cls):
        return "cpu"

    @classmethod
    def get_supported_fallback_kernels(cls):
        return {}

    @classmethod
    def get_decomposition_table(cls):
        return {}

    @classmethod
    def get_aoti_compile_options(cls, compile_specs):
        return {
            "aot_inductor.package": True,
            "aot_inductor.package_constants_in_so": False,
            "aot_inductor.package_constants_on_disk_format": "binary_blob",
        }

    @classmethod
    def get_custom_passes(cls, compile_specs):
        return []


class Model(BaseModel, table=lambda: torch.nn.Parameter(torch.randn(16, 4))):

    def forward(self, x):
        y = torch.sin(self.table[x.abs().argmax(-1)] * x)
        return torch.relu(y) + self.table.sum(0)


class FromLibraries(torch.fx.Interpreter):
    """Runs an edge program, the delegates of ``CpuAotiTestBackend`` from their libraries."""

    def __init__(self, graph_module, folder):
        super().__init__(graph_module)
        self.folder = folder
        self.loaded = 0

    def call_function(self, target, args, kwargs):
        if (
            target is not executorch_call_delegate
            or args[0].backend_id != "CpuAotiTestBackend"
        ):
            return super().call_function(target, args, kwargs)
        store = args[0].named_data_store_output
        so, weights = (
            store.buffers[store.pte_data[key].buffer_index]
            for key in args[0].processed_bytes.decode().split("\n")
        )
        self.loaded += 1
        library = self.folder / f"{self.loaded}.wrapper.so"
        library.write_bytes(so)
        blob = self.folder / f"{self.loaded}.blob"
        blob.write_bytes(weights)
        runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)
        if weights:
            runner.update_constant_buffer_from_blob(str(blob))
        return runner.run(list(args[1:]))


def test_libraries_of_stacked_partitions_reproduce_eager(foreign, tmp_path):
    spec = CpuAotiTestBackend.generate_method_name_compile_spec("forward")
    module, x = Model(), torch.randn(5, 4)
    partitioner = AotiPartitioner("CpuAotiTestBackend", [spec])
    edge = lower(module, (x,), foreign("sin"), partitioner)
    program = edge.exported_program()
    interpreter = FromLibraries(program.graph_module, tmp_path)
    (output,) = interpreter.run(x)
    assert interpreter.loaded == 2
    torch.testing.assert_close(output, module(x))
