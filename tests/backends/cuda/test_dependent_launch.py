"""Kernels for 9.0 and later wait for the kernel before them, and are launched while it runs."""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.backends.cuda import _dependent_launch
from torch.nn import functional as F

from torchtrt_executorch.nogpu.target.gpu_description import own_platform
from torchtrt_executorch.payloads import cubin

from ...lowering import BaseModel
from ...torchtrt_executorch.nogpu.cross import cross_machines as machines
from .conftest import delegates, needs_compilers, needs_recorder

#: Instructions that read or write the GPU's memory, and what waits and allows the next kernel's launch.
_ACCESS = re.compile(r"\b(?:LD|ST|LDG|STG|LDGSTS|ATOM|ATOMG|RED|REDG|UTMALDG|UBLKCP)\b")
_WAIT, _ALLOW = "ACQBULK", "PREEXIT"
_CUDA_MACHINE = 190
#: Programmatic stream serialization.
EARLY = "cuLaunchKernelEx attribute=6 value=1"


class Model(torch.nn.Module):
    """Products in tiles and as sums, a scan, a reduction, an atomic sum and attention: (64, 64) of float16 to (64, 64)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.register_buffer("index", torch.arange(64).flip(0) // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(self.linear(x), -1).cumsum(-1)
        y = torch.zeros_like(y).index_add(0, self.index, y)
        heads = y.view(1, 64, 4, 16).transpose(1, 2)
        y = F.scaled_dot_product_attention(heads, heads, heads)
        return y.transpose(1, 2).reshape(64, 64) + self.linear(x[:1])


def instructions(library: bytes, folder: Path) -> Iterator[tuple[int, list[str]]]:
    """The compute capability and the machine code of each kernel's image."""
    from triton.backends import nvidia

    program = Path(nvidia.__path__[0], "bin", "cuobjdump")
    for found in re.finditer(rb"\x7fELF\x02\x01\x01[\x33\x41]", library):
        image = library[found.start() :]
        if struct.unpack_from("<H", image, 18) != (_CUDA_MACHINE,):
            continue
        file = folder / "kernel.cubin"
        file.write_bytes(image[: 1 << 20])
        said = subprocess.run(
            [program, "-sass", file], check=True, capture_output=True, text=True
        )
        code = re.findall(r"/\*[0-9a-f]{4}\*/ +(.*);", said.stdout)
        assert code
        yield cubin.capability(image), code


class Large(BaseModel, linear=lambda: torch.nn.Linear(4096, 4096, dtype=torch.float16)):
    """A product of which a tile takes much shared memory, between two kernels that take none."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(torch.softmax(x, -1)), -1)


@needs_compilers
@pytest.mark.builds
@needs_recorder
def test_each_waits_before_it_touches_memory_where_gpus_can(
    lower: Callable[..., Any], tmp_path: Path
) -> None:
    model, x = Model().half(), torch.randn(64, 64, dtype=torch.float16)
    (delegate,) = delegates(lower(model, (x,), gpu="sm_80:16GiB,sm_90:80GiB"))
    images = [*instructions(delegate.library, tmp_path)]
    assert {gpu for gpu, _ in images} == {80, 90}
    for gpu, code in images:
        waits = [i for i, line in enumerate(code) if _WAIT in line]
        allows = [i for i, line in enumerate(code) if _ALLOW in line]
        if gpu < _dependent_launch.CAPABILITY:
            assert not waits and not allows
            continue
        accesses = [i for i, line in enumerate(code) if _ACCESS.search(line)]
        assert len(waits) == len(allows) == 1
        assert waits[0] < allows[0] and waits[0] < accesses[0]

    given = (machines.described((64, 64), torch.float16),)
    loaded = machines.Loaded(delegate.library, delegate.weights, given)
    # On 8.6 there is the code for 8.0, on 12.0 its PTX.
    for gpu, all_early in ((86, False), (90, True), (120, False)):
        said = machines.recorded(own_platform(), loaded, gpu).splitlines()
        launches = [
            i for i, line in enumerate(said) if line.startswith("cuLaunchKernel name")
        ]
        assert len(launches) > 4
        assert {said[i - 1] == EARLY for i in launches} == {all_early}


@needs_compilers
@pytest.mark.builds
@needs_recorder
def test_one_with_much_shared_memory_is_launched_in_order(
    lower: Callable[..., Any],
) -> None:
    x = torch.randn(512, 4096, dtype=torch.float16)
    (delegate,) = delegates(lower(Large(), (x,), gpu="sm_90:80GiB"))
    given = (machines.described((512, 4096), torch.float16),)
    loaded = machines.Loaded(delegate.library, delegate.weights, given)
    said = machines.recorded(own_platform(), loaded, 90).splitlines()
    found = {True: 0, False: 0}
    for before, line in zip(said, said[1:], strict=False):
        if launch := re.match(r"cuLaunchKernel name=.* shared=(\d+)", line):
            large = int(launch[1]) >= _dependent_launch.LARGE
            assert (before == EARLY) is not large
            found[large] += 1
    assert found[True] and found[False] >= 2


def test_a_wait_stands_before_the_first_branch() -> None:
    """A kernel with nothing to do ends there, and the next one waits for it alone."""
    begin = ".version 8.0\n.target sm_80\n.visible .entry k(\n)\n.reqntid 32\n{\n"
    index = "\t.reg .b32 %r<2>;\n// %bb.0:\n\tmov.u32 %r1, %ctaid.x;\n"
    end = "\t@%p1 bra $L__BB0_2;\n\tld.global.b32 %r2, [%rd1];\n$L__BB0_2:\n\tret;\n}\n"
    waiting = _dependent_launch.waiting(begin + index + end, 90, 0)
    assert _dependent_launch.WAIT in waiting and _dependent_launch.ALLOW in waiting
    assert waiting.startswith(begin.replace("sm_80", "sm_90") + index)
    assert waiting.endswith(end)
    assert _dependent_launch.waiting(waiting, 90, 0) == waiting
    assert _dependent_launch.waiting(begin + index + end, 89, 0) == begin + index + end
    large = _dependent_launch.waiting(begin + index + end, 90, _dependent_launch.LARGE)
    assert _dependent_launch.WAIT in large and _dependent_launch.ALLOW not in large


def test_a_gemv_waits_where_its_first_barrier_is_unless_threads_exchange_values_there() -> (
    None
):
    begin = ".target sm_90\n.visible .entry _gemv_kernel_1(\n)\n{\n"
    load, barrier = "\tld.global.b32 %r2, [%rd1];\n", "\tbar.sync \t0;\n"
    end = "\tld.global.b32 %r3, [%rd2];\n\tret;\n}\n"
    wait = f"\t{_dependent_launch.WAIT}\n\t{_dependent_launch.ALLOW}\n"

    def waiting(*lines: str) -> str:
        return _dependent_launch.waiting("".join(lines), 90, 0)

    assert waiting(begin, load, barrier, end) == begin + load + wait + end
    others = begin.replace("_gemv_kernel", "_other_kernel")
    assert waiting(others, load, barrier, end) == others + wait + load + barrier + end
    for exchange in ("\t@%p1 st.shared.b32 [%r1], %r2;\n", "\tshfl.sync.b32 %r2;\n"):
        own = [load, exchange, barrier, end]
        assert waiting(begin, *own) == begin + wait + "".join(own)
    assert waiting(begin, load, end) == begin + wait + load + end


def test_helpers_of_another_form_are_left() -> None:
    text = "void launch(CUfunction function) {}"
    assert _dependent_launch.launching_early(text) == text
