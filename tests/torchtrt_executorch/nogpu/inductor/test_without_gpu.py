"""A CUDA delegate lowered by what users write, on a host that has no GPU."""

from __future__ import annotations

import copy
import inspect
import re
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from torch._inductor import config
from typer.testing import CliRunner

from torchtrt_executorch.cli import app
from torchtrt_executorch.nogpu import thread_scope
from torchtrt_executorch.nogpu.builder.installed import TENSORRT, installed_builder
from torchtrt_executorch.payloads import cuda_shims, native_library
from torchtrt_executorch.payloads.cuda_library import capabilities

from ....backends.cuda.conftest import Delegate, delegates, needs_compilers

pytestmark = [
    pytest.mark.builds,
    needs_compilers,
    pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU"),
]


class Layers(torch.nn.Module):
    """Weights of one shape, a tied one, a view, small constants, an unused buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
        self.tied = self.first.weight
        self.register_buffer("column", torch.randn(32, 4)[:, 1])
        self.register_buffer("scale", torch.tensor(3.25))
        self.register_buffer("unused", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x))))
        return torch.softmax(x @ self.tied + self.column, -1) * self.scale


@pytest.fixture(scope="module")
def module() -> Layers:
    torch.manual_seed(0)
    return Layers()


@pytest.fixture(scope="module")
def meanwhile() -> list[Any]:
    """What another thread sees of CUDA while the delegate is compiled."""
    return []


@pytest.fixture(scope="module")
def lowered(lower, module, meanwhile):
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.05):
            meanwhile.append((torch.cuda.is_available(), torch.cuda.device_count()))

    other = threading.Thread(target=look)
    other.start()
    try:
        return lower(module, (torch.randn(8, 32),))
    finally:
        done.set()
        other.join()


@pytest.fixture(scope="module")
def delegate(lowered) -> Delegate:
    (delegate,) = delegates(lowered)
    return delegate


def test_everything_is_in_one_delegate_and_each_weight_is_there_once(
    lowered, delegate, module
) -> None:
    graph = lowered.exported_program().graph
    assert [node.op for node in graph.nodes].count("call_function") == 2  # and getitem
    assert delegate.library.startswith(b"\x7fELF")
    for tensor in (module.first.weight, module.second.weight, module.first.bias):
        data = tensor.detach().numpy().tobytes()
        assert delegate.weights.count(data) == 1
    assert module.column.contiguous().numpy().tobytes() in delegate.weights


def test_the_library_needs_the_driver_and_no_more_than_a_target_has(
    delegate, tmp_path
) -> None:
    library = tmp_path / "library.so"
    library.write_bytes(delegate.library)
    listed = subprocess.run(
        ["readelf", "-d", library], capture_output=True, text=True, check=True
    ).stdout
    needed = [line for line in listed.splitlines() if "NEEDED" in line]
    assert any("[libcuda.so.1]" in line for line in needed)
    assert not any("torch" in line or "cudart" in line for line in needed)


def test_the_library_calls_what_executorch_s_cuda_runtime_offers(delegate) -> None:
    calls = native_library.read(delegate.library).undefined
    shims = [name for name in calls if name.startswith("aoti_")]
    assert len(shims) > 5
    assert [name for name in shims if not cuda_shims.offered(name)] == []


def expected_code() -> tuple[str, bool]:
    """Machine code that there is by default, and whether there is assembly for later GPUs."""
    return ("sm_90", False) if installed_builder() is TENSORRT else ("sm_80", True)


def test_it_has_code_for_the_gpus_of_the_engines_beside_it(delegate) -> None:
    machine, portable = expected_code()
    assembly = [machine.replace("sm", "compute")] if portable else []
    assert capabilities(delegate.library) == [machine, *assembly]
    for cut in (0, 10, 5000, len(delegate.library) // 2):
        capabilities(delegate.library[:cut])


def test_inspect_says_which(lowered, tmp_path) -> None:
    path = tmp_path / "model.pte"
    path.write_bytes(copy.deepcopy(lowered).to_executorch().buffer)
    shown = CliRunner().invoke(app, ["inspect", str(path)]).output
    machine, portable = expected_code()
    words = " ".join(re.findall(r"[\w,]+", shown))
    assert f"machine code for {machine}" in words
    assert (f"PTX for {machine} and later" in words) == portable


def test_another_thread_sees_no_device_meanwhile(lowered, meanwhile) -> None:
    assert meanwhile and set(meanwhile) == {(False, 0)}


def test_nothing_is_left_in_place_of_upstream_s(lowered) -> None:
    def ours(value: Any) -> bool:
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        if not inspect.isfunction(value):
            return False
        code = value.__code__
        return (code.co_filename, code.co_name) == (thread_scope.__file__, "choose")

    left = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in thread_scope.PACKAGES:
            continue
        for key, value in list(vars(module).items()):
            if ours(value):
                left.append(f"{name}.{key}")
            if isinstance(value, type):
                members = list(vars(value).items())
                left += [f"{name}.{key}.{m}" for m, member in members if ours(member)]
    assert not left
    assert not torch.cuda.is_available()


def test_a_cpu_model_compiles_afterwards_as_before(lowered) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    x = torch.randn(2, 4)
    # Headers that no other test includes, and what this processor can do, take longer than all the rest.
    once = {"cpp_cache_precompile_headers": False, "cpp.vec_isa_ok": False}
    with config.patch(once):
        torch.testing.assert_close(torch.compile(model)(x), model(x))
