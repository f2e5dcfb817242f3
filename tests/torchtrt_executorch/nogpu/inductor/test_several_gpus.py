"""Libraries for GPUs of every capability, by themselves and several at once."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from executorch.backends.cuda.tuning.gpu_properties import common_properties, properties

from torchtrt_executorch.nogpu.inductor import portable_assembly
from torchtrt_executorch.nogpu.target.gpu_description import (
    GpuDescription,
    own_platform,
)
from torchtrt_executorch.payloads import gpus
from torchtrt_executorch.payloads.cuda_library import capabilities
from torchtrt_executorch.payloads.cuda_library import kernels as kernels_of

from ....backends.cuda.conftest import delegates, needs_compilers
from ....backends.cuda.test_bad_input import CAPABILITIES
from ....lowering import Function
from ..cross import cross_machines as machines

pytestmark = pytest.mark.builds

#: One with assembly for later GPUs, one of the architectures without; the others are as one of them.
EVERY_TIME = ("87", "100")
X = torch.randn(64, 48, dtype=torch.float16)


class Model(torch.nn.Module):
    """A product on tensor cores and a reduction."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(48, 96, dtype=torch.float16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(x), -1)


@needs_compilers
@pytest.mark.parametrize(
    "capability",
    [
        pytest.param(each, marks=() if each in EVERY_TIME else pytest.mark.slow)
        for each in CAPABILITIES
    ],
)
def test_each_capability_by_itself(lower: Callable[..., Any], capability: str) -> None:
    (delegate,) = delegates(lower(Model(), (X,), gpu=f"sm_{capability}:16GiB"))
    found = capabilities(delegate.library)
    # From 9.0 on Triton's assembly is for that architecture alone.
    later = [f"compute_{capability}"] if int(capability) < 90 else []
    assert found == [f"sm_{capability}", *later]


@needs_compilers
def test_several_in_one_library_whose_host_side_is_compiled_once(
    lower: Callable[..., Any], compiled: list[str]
) -> None:
    gpus = ",".join(f"sm_{capability}:16GiB" for capability in ("120", "80", "90"))
    (delegate,) = delegates(lower(Model(), (X,), gpu=gpus))
    assert capabilities(delegate.library) == ["sm_80", "sm_90", "sm_120", "compute_80"]
    assert [n for n in compiled if n.endswith(".wrapper.cpp")] == ["own.wrapper.cpp"]


@needs_compilers
def test_kernels_that_are_known_already(lower: Callable[..., Any]) -> None:
    """Inductor and Triton find a kernel on disk for the next program that has it."""
    libraries = []
    for _ in range(2):
        (delegate,) = delegates(lower(torch.nn.SiLU(), (X,), gpu="sm_86:16GiB"))
        libraries.append(delegate.library)
    for library in libraries:
        assert capabilities(library) == ["sm_86", "compute_86"]


def mixed(x: torch.Tensor, linear: Any) -> tuple[torch.Tensor, ...]:
    """A matmul, a pointwise kernel and a reduction."""
    return linear(x), torch.softmax(x, -1), x.sin().mT


@needs_compilers
def test_what_is_assembled_for_a_later_gpu_and_what_is_compiled(
    lower: Callable[..., Any],
) -> None:
    """Triton compiles each kernel for the first, and only what is better so for the other."""
    from triton import knobs

    targets: dict[str, set[int]] = {}

    def note(*, src: Any, metadata: Any, **others: Any) -> None:
        targets.setdefault(metadata["name"], set()).add(metadata["target"].arch)

    model = Function(mixed, torch.nn.Linear(48, 96, dtype=torch.float16))
    before, knobs.compilation.listener = knobs.compilation.listener, note
    try:
        edge = lower(model, (X,), gpu="sm_87:16GiB,sm_90:80GiB")
    finally:
        knobs.compilation.listener = before
    (delegate,) = delegates(edge)
    twice = {name for name, of in targets.items() if of == {87, 90}}
    assert all(of in ({87}, {87, 90}) for of in targets.values())
    assert twice and twice == {name for name in targets if "_tem_" in name}
    kinds = {name[:11] for name in targets.keys() - twice}
    assert kinds == {"triton_per_", "triton_poi_"}
    for kernel in kernels_of(delegate.library):
        code = {image.gpu for image in kernel.images if not image.is_ptx}
        assert code == {87, 90}, kernel.name


@pytest.mark.parametrize(
    ("operation", "own", "other", "serves"),
    [
        ("math.sin %x : tensor<64xf32>", (8, 0), (9, 0), True),
        ("math.sin %x : tensor<64xf32>", (8, 7), (8, 9), True),
        ("math.sin %x : tensor<64xf32>", (7, 5), (8, 6), False),
        ("math.sin %x : tensor<64xf32>", (8, 9), (12, 0), False),
        ("tt.dot %a, %b, %c : tensor<16x16xf16>", (8, 0), (9, 0), False),
        ("tt.dot_scaled %a, %b : tensor<16x16xi8>", (8, 0), (9, 0), False),
        ("tt.descriptor_load %d[%i] : tensor<16xf16>", (8, 0), (9, 0), False),
        ("tt.make_tensor_descriptor %p : tensor<16xf16>", (8, 0), (9, 0), False),
        ("tt.fp_to_fp %x : tensor<64xf32> -> tensor<64xf8E4M3FN>", (8, 0), (9, 0), False),
        ("tt.atomic_rmw fadd, relaxed, gpu, %p : tensor<64xbf16>", (8, 0), (9, 0), False),
        ("tt.atomic_rmw fadd, relaxed, gpu, %p : tensor<64xf32>", (8, 0), (9, 0), True),
    ],
)  # fmt: skip
def test_whose_assembly_is_as_good_as_triton_s(
    operation: str, own: tuple[int, int], other: tuple[int, int], serves: bool
) -> None:
    asm = {"ttir": operation, "ptx": ".target sm_{}{}".format(*own)}
    assert portable_assembly.serves(SimpleNamespace(asm=asm), own, other) == serves


def kernels() -> dict[int, object]:
    """Inductor's and Triton's, of which either has machine code and source."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from triton.compiler.compiler import CompiledKernel

    gc.collect()
    kinds = CachingAutotuner, CompiledKernel
    return {id(each): each for each in gc.get_objects() if isinstance(each, kinds)}


@needs_compilers
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("gpus", ["sm_86:16GiB", "sm_80:16GiB,sm_90:80GiB"])
def test_no_kernel_is_left_of_what_was_lowered(
    lower: Callable[..., Any], gpus: str
) -> None:
    before = kernels()
    for scale in (1.5, 1.5, 2.5):
        scaled = Function(lambda x, scale=scale: torch.sin(x) * scale)
        assert delegates(lower(scaled, (X,), gpu=gpus))
        assert kernels().keys() <= before.keys()


def test_what_is_compiled_fits_the_smallest() -> None:
    text = "sm_90:80GiB,sm_80:40GiB,sm_86:24GiB"
    common = common_properties(GpuDescription.parse_list(text))
    each = [properties(gpu) for gpu in GpuDescription.parse_list(text)]
    assert common.capability == (8, 0) and common.others == ((8, 6), (9, 0))
    for name in (
        "total_memory",
        "max_threads_per_multi_processor",
        "shared_memory_per_multiprocessor",
        "shared_memory_per_block_optin",
    ):
        values = [getattr(gpu, name) for gpu in each]
        assert getattr(common, name) == min(values) < max(values)


def test_one_is_what_it_is() -> None:
    gpu = GpuDescription.parse("sm_87:16GiB")
    assert common_properties([gpu]) == properties(gpu)


@needs_compilers
def test_a_gpu_has_a_kernel_of_its_own_where_that_is_faster(
    lower: Callable[..., Any],
) -> None:
    """It is the one that a library for this GPU alone has, and the host's code launches it there alone."""
    x = torch.randn(128, 4096, dtype=torch.float16)
    # The fastest tile for 9.0 takes more shared memory than 8.6 has.
    linear = torch.nn.Linear(4096, 4096, dtype=torch.float16)
    wide = torch.nn.Sequential(linear, torch.nn.GELU())
    (both,) = delegates(lower(wide, (x,), gpu="sm_86:16GiB,sm_90:80GiB"))
    shared, own = kernels_of(both.library)
    assert [each.name for each in shared.images] == ["sm_86", "compute_86"]
    assert [each.name for each in own.images] == ["sm_90"]
    limit = gpus.shared_memory(86) or 0
    assert (shared.shared or 0) <= limit < (own.shared or 0)
    (alone,) = delegates(lower(wide, (x,), gpu="sm_90:80GiB"))
    (expected,) = kernels_of(alone.library)
    assert (own.shared, own.threads) == (expected.shared, expected.threads)
    given = machines.described((128, 4096), torch.float16)
    loaded = machines.Loaded(both.library, both.weights, (given,))
    for gpu, kernel in ((86, shared), (89, shared), (90, own), (120, shared)):
        asked = machines.recorded(own_platform(), loaded, gpu)
        (launch,) = re.findall(r"cuLaunchKernel name=(\S+) .* shared=(\d+)", asked)
        assert launch == (kernel.name, str(kernel.shared))


@needs_compilers
@pytest.mark.slow
def test_what_a_listed_gpu_cannot_launch_is_compiled_with_other_tiles(
    lower: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kernel notes what a launch takes; the second GPU is given less shared memory than the first choice takes."""
    target = "sm_80:16GiB,sm_90:80GiB"
    (delegate,) = delegates(lower(Model(), (X,), gpu=target))
    before = kernels_of(delegate.library)
    assert all(each.threads and not each.damaged for each in before)
    matmul = max(before, key=lambda each: each.shared or 0)
    monkeypatch.setitem(gpus.SHARED_KIB, 90, ((matmul.shared or 0) >> 10) - 1)
    assert [*gpus.beyond_limits(matmul, 90)] and not [*gpus.beyond_limits(matmul, 80)]
    monkeypatch.setenv("TORCHTRT_EXECUTORCH_CACHE", "0")
    (delegate,) = delegates(lower(Model(), (X,), gpu=target))
    after = kernels_of(delegate.library)
    assert not [what for each in after for what in gpus.beyond_limits(each, 90)]
