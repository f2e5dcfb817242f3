"""Buffers that the libraries of several methods keep, and have in common."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.backends.aoti.aoti_backend import AotiBackend
from executorch.backends.aoti.aoti_partitioner import AotiPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch import nn
from torch.export import export

from torchtrt_executorch import runtime
from torchtrt_executorch.nogpu import stand_ins
from torchtrt_executorch.nogpu.stand_ins.on_host import on_host

from ...lowering import delegates, load

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class KeepingTestBackend(AotiBackend, BackendDetails):  # type: ignore[misc]
    """AOTInductor for the CPU, with the options that ``CudaBackend`` packages libraries by."""

    @classmethod
    def get_device_name(cls) -> str:
        return "cpu"

    @classmethod
    def get_supported_fallback_kernels(cls) -> dict[str, Any]:
        return {}

    @classmethod
    def get_decomposition_table(cls) -> dict[Any, Any]:
        return {}

    @classmethod
    def get_aoti_compile_options(cls, compile_specs: Any) -> dict[str, Any]:
        return {
            "aot_inductor.package": True,
            "aot_inductor.package_constants_in_so": False,
            "aot_inductor.package_constants_on_disk_format": "binary_blob",
        }

    @classmethod
    def get_custom_passes(cls, compile_specs: Any) -> list[Any]:
        return []


class StandInTestBackend(BackendDetails):  # type: ignore[misc]
    """Has a stand-in for each payload, whose library is none."""

    @staticmethod
    def preprocess(edge_program: Any, compile_specs: Any) -> PreprocessResult:
        (name,) = (bytes(s.value) for s in compile_specs if s.key == "method_name")
        library = name + str(edge_program.graph).encode()
        store = NamedDataStore()
        for key, data in ((f"{name!r}_so", library), ("weights", b"weights")):
            store.add_named_data(key, data)
        stand_ins.keep(stand_ins.digest(library, b"weights"), on_host(edge_program))
        return PreprocessResult(
            processed_bytes=f"{name!r}_so\nweights".encode(),
            data_store_output=store.get_named_data_store_output(),
        )


class Step(nn.Module):
    """Adds what it makes of its input to a sum, and returns what that is then."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(2, 3))
        self.register_buffer("total", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(self.weight * x)
        return self.total * 2


class OtherStep(Step):
    """The same buffer; what else it has is in another order, and one more."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.copy_(self.total * self.scale + self.weight * x)
        return self.total + 1


def lowered(methods: dict[str, nn.Module], device: str) -> Any:
    """Methods whose delegates keep everything."""
    backend = KeepingTestBackend if device == "cpu" else StandInTestBackend
    partitioners = {}
    for name in methods:
        spec = AotiBackend.generate_method_name_compile_spec(name)
        specs = [spec, CompileSpec("target_device", device.encode())]
        partitioners[name] = [AotiPartitioner(backend.__name__, specs)]
    exported = {name: export(model, (X,)) for name, model in methods.items()}
    edge = to_edge_transform_and_lower(exported, partitioner=partitioners)
    for name in methods:
        for module in delegates(edge, name):
            module._backend_id = "CudaBackend"
    return edge


@cache
def saved(alike: bool, device: str) -> tuple[bytes, list[bytes]]:
    methods = {"prefill": Step(), "decode": Step() if alike else OtherStep()}
    with torch.no_grad():
        program = lowered(methods, device).to_executorch()
    return bytes(program.buffer), [bytes(d) for d in program._tensor_data.values()]


def mapped() -> set[str]:
    """Return the inodes of the libraries that this process has mapped from memory."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "memfd:model.wrapper.so" in line}


def test_a_library_is_mapped_once_however_often_it_is_loaded() -> None:
    """PyTorch unloads none: eight threads that loaded and dropped programs grew by each of them."""
    pte, data = saved(True, "cpu")
    kept = runtime.load(pte, data)
    for name in ("prefill", "decode"):
        kept.method(name)(X)
    before = mapped()
    for _ in range(3):
        runtime.load(pte, data).method("decode")(X)
        kept.method("decode").clone()(X)
    assert before and mapped() == before


def expected(alike: bool) -> list[torch.Tensor]:
    one, other = Step(), Step() if alike else OtherStep()
    other.total = one.total
    with torch.no_grad():
        return [each(X).clone() for each in (one, other, other, one)]


def check(program: runtime.Program, alike: bool, first: str) -> None:
    program.method(first)
    order = ("prefill", "decode", "decode", "prefill")
    for name, wanted in zip(order, expected(alike), strict=True):
        torch.testing.assert_close(program.method(name)(X)[0], wanted)
    copy = program.method("decode").clone()  # has state of its own
    model = Step() if alike else OtherStep()
    torch.testing.assert_close(copy(X)[0], model(X).detach())


@pytest.mark.skipif(torch.cuda.is_available(), reason="no stand-ins on a GPU")
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("first", ["prefill", "decode"])
def test_stand_ins_work_on_one_buffer(alike: bool, first: str) -> None:
    """Whichever is loaded first, in two programs at once."""
    one, other = (runtime.load(*saved(alike, "cuda:0")) for _ in range(2))
    check(one, alike, first)
    check(other, alike, first)


class Reader(Step):
    """Writes nothing, so that its stand-in is whose copy it likes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.total * 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="no stand-ins on a GPU")
def test_a_method_that_only_reads_is_loaded_first() -> None:
    """It sees what the other one writes; another program, and a clone, begin anew."""
    with torch.no_grad():
        program = lowered({"look": Reader(), "step": Step()}, "cuda:0").to_executorch()
    zeros, written = torch.zeros(2, 3), Step()(X).detach()
    for _ in range(2):
        loaded = load(program)
        look, step = loaded.method("look"), loaded.method("step")
        for method, right in ((look, zeros), (step, written), (look, written)):
            torch.testing.assert_close(method(X)[0], right)
        torch.testing.assert_close(look.clone()(X)[0], zeros)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="AOTInductor needs a compiler")
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("first", ["prefill", "decode"])
def test_libraries_work_on_one_buffer(alike: bool, first: str) -> None:
    """Whichever is loaded first; with one blob of weights, which is there once, or two."""
    check(runtime.load(*saved(alike, "cpu")), alike, first)
