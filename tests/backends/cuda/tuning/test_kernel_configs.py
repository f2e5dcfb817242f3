"""Which configurations of a kernel are compiled, and which is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from executorch.backends.cuda.tuning import kernel_configs
from executorch.backends.cuda.tuning.gpu_properties import properties
from executorch.backends.cuda.tuning.kernel_configs import (
    a_value_for_each,
    best,
    precompile_until_best,
)
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from torch._inductor.runtime.triton_heuristics import (
    CachingAutotuner,
    NoTritonConfigsError,
)

from torchtrt_executorch.nogpu.target.gpu_description import GpuDescription

from ....lowering import Function
from ..conftest import compiles_delegates

GPU = properties(GpuDescription.parse("sm_86:8GiB"))
SIZES = {"x": 4096, "r0_": 512}


@dataclass(frozen=True)
class Config:
    """One configuration, and what compiling it would show; no registers if it doesn't compile."""

    block: int
    num_warps: int
    n_regs: int
    n_spills: int
    shared: int

    @property
    def kwargs(self) -> dict[str, int]:
        return {"XBLOCK": self.block}


@dataclass
class Launcher:
    config: Config

    def __getattr__(self, name: str) -> Any:
        return getattr(self.config, name)


@dataclass
class Kernel:
    """What ``CachingAutotuner`` has before and after it compiles."""

    configs: list[Config] | None
    size_hints: dict[str, int] = field(default_factory=lambda: dict(SIZES))
    compile_results: list[Config] = field(default_factory=list)
    launchers: list[Launcher] = field(default_factory=list)
    compiled: int = 0
    inductor_meta: dict[str, Any] = field(default_factory=dict)

    def precompile(self, **how: Any) -> None:
        assert self.configs is not None and how == {"reload_kernel": None}
        self.compiled += len(self.configs)
        self.compile_results = [each for each in self.configs if each.n_regs]
        self.launchers = [Launcher(each) for each in self.compile_results]
        self.configs = None
        if not self.launchers:
            raise NoTritonConfigsError("No valid triton configs")


configs = st.builds(
    Config,
    st.sampled_from([1, 8, 32, 128, 1024]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([0, 24, 64, 128, 255]),
    st.sampled_from([0, 0, 0, 8, 64]),
    st.sampled_from([0, 4096, 60 << 10, 99 << 10]),
)


@given(st.lists(configs, min_size=1, max_size=6))
def test_the_first_that_nothing_beats_is_the_best_of_all(each: list[Config]) -> None:
    every, some = Kernel(list(each)), Kernel(list(each))
    try:
        every.precompile(reload_kernel=None)
    except NoTritonConfigsError:
        with pytest.raises(NoTritonConfigsError):
            precompile_until_best(Kernel.precompile, GPU, some, reload_kernel=None)
        return
    precompile_until_best(Kernel.precompile, GPU, some, reload_kernel=None)
    assert some.compiled <= every.compiled and some.configs is None
    taken = [best(kernel.launchers, GPU, SIZES).config for kernel in (every, some)]
    # Of equals the first is taken, in the order of either.
    assert taken[0].kwargs == taken[1].kwargs
    assert (taken[0].n_spills > 16) == (taken[1].n_spills > 16)


def test_one_is_compiled_of_four_where_the_largest_fits() -> None:
    kernel = Kernel([Config(block, 4, 32, 0, 1024) for block in (1, 8, 32, 16)])
    precompile_until_best(Kernel.precompile, GPU, kernel, reload_kernel=None)
    assert kernel.compiled == 1
    assert best(kernel.launchers, GPU, SIZES).config.block == 32


def test_what_is_compiled_already_is_left() -> None:
    kernel = Kernel(None, launchers=[Launcher(Config(1, 4, 32, 0, 0))])
    calls = []
    precompile_until_best(lambda *of, **how: calls.append(how), GPU, kernel)
    assert calls == [{}] and len(kernel.launchers) == 1


@pytest.mark.parametrize(
    ("blocks", "scores", "expected"),
    [
        ({"YBLOCK": 32, "XBLOCK": 32}, {"y": 900, "x": 5}, {"YBLOCK": 32, "XBLOCK": 4}),
        ({"YBLOCK": 32, "XBLOCK": 32}, {"y": 5, "x": 900}, {"YBLOCK": 4, "XBLOCK": 32}),
        ({"XBLOCK": 1024}, {}, {"XBLOCK": 128}),
        ({"YBLOCK": 2, "XBLOCK": 256}, {"x": 9}, {"YBLOCK": 2, "XBLOCK": 64}),
        ({"XBLOCK": 64}, {}, {"XBLOCK": 64}),
    ],
)
def test_a_thread_has_a_value_where_memory_is_contiguous(
    blocks: dict[str, int], scores: dict[str, int], expected: dict[str, int]
) -> None:
    assert a_value_for_each(128, blocks, scores) == expected


def normalized(x: torch.Tensor) -> torch.Tensor:
    """Go through a row three times."""
    centred = x - x.mean(-1, keepdim=True)
    return torch.softmax(centred * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5), -1)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Go through a row twice."""
    return torch.softmax(x, -1)


@compiles_delegates
@pytest.mark.parametrize(
    ("function", "rows", "length", "expected"),
    [
        (softmax, 512, 4096, {(1, 2048, 4)}),
        (softmax, 512, 10_000, {(1, 2048, 16)}),
        (normalized, 512, 8192, {(1, 4096, 8)}),
        (softmax, 512, 65_536, {(1, 4096, 32)}),
        (softmax, 64, 8192, None),  # few rows: Inductor's
    ],
)
def test_blocks_of_long_rows(
    function: Callable[[torch.Tensor], torch.Tensor],
    rows: int,
    length: int,
    expected: set[tuple[int, int, int]] | None,
    lower: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[Any] = []
    save = CachingAutotuner.save_gpu_kernel

    def noted(kernel: Any, stream: Any, launcher: Any) -> Any:
        assert launcher.n_spills <= kernel_configs.FRAME
        if "R0_BLOCK" in launcher.config.kwargs:
            found.append(launcher.config)
        return save(kernel, stream, launcher)

    monkeypatch.setattr(CachingAutotuner, "save_gpu_kernel", noted)
    lower(Function(function), (torch.ones(rows, length),), gpu="sm_90:80GiB")
    blocks = {(c.kwargs["XBLOCK"], c.kwargs["R0_BLOCK"], c.num_warps) for c in found}
    measured = {(1, 2048, 4), (1, 4096, 8), (1, 4096, 32)}
    if expected is None:
        assert not blocks & measured
    elif function is normalized and Version(torch.__version__).release < (2, 14):
        # Triton gives it more registers there, so that Inductor halves its blocks.
        assert blocks == {(1, 2048, 8)}
    else:
        assert blocks == expected
