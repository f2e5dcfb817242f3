"""Compile specs with slips in them: none is ignored in silence."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.exir.backend.compile_spec_schema import CompileSpec
from hypothesis import given
from hypothesis import strategies as st
from torch_tensorrt.executorch.partitioner import TensorRTPartitioner

METHOD = CudaBackend.generate_method_name_compile_spec("forward")
SWITCHES = ("keep_mutable_buffers", "low_memory_mode", "triton_kernel_mode")
#: Keys that each takes, with a value.
CUDA = {
    "gpu": b"sm_80:8GiB",
    "target_device": b"cuda:1",
    "platform": b"linux",
    "max_autotune": b"OFF",
    **dict.fromkeys(SWITCHES, b"ON"),
}
TENSORRT = {
    "gpu": b"sm_80:8GiB",
    "target_device": b"cuda:1",
    "weight_streaming_budget": b"1024",
}


def cuda(*specs: CompileSpec) -> Any:
    return CudaPartitioner([METHOD, *specs])


def tensorrt(*specs: CompileSpec) -> Any:
    return TensorRTPartitioner([*specs])


Make = Callable[..., Any]
KNOWN = [
    *((cuda, key, value) for key, value in CUDA.items()),
    *((tensorrt, key, value) for key, value in TENSORRT.items()),
]


@pytest.mark.parametrize(("make", "key", "value"), KNOWN)
def test_what_is_known_is_taken(make: Make, key: str, value: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        partitioner = make(CompileSpec(key, value))
    specs = partitioner.delegation_spec.compile_specs
    assert [spec.value for spec in specs if spec.key == key] == [value]


@given(st.sampled_from(KNOWN), st.integers(0, 30), st.sampled_from(["", "u", "_", "Q"]))
def test_a_slip_of_one_letter_is_an_error(
    known: tuple[Make, str, bytes], at: int, letter: str
) -> None:
    make, key, value = known
    at %= len(key) + 1
    slip = key[:at] + letter + key[at + (not letter) :]
    if slip in (key, ""):
        return
    with pytest.raises(ValueError, match=f"{re.escape(repr(slip))}; did you mean"):
        make(CompileSpec(slip, value))


@pytest.mark.parametrize("make", [cuda, tensorrt])
def test_a_key_of_somebody_else_s_is_handed_on_with_a_warning(make: Make) -> None:
    with pytest.warns(UserWarning, match="'whose'.*there are .*gpu"):
        partitioner = make(CompileSpec("whose", b""))
    assert "whose" in {s.key for s in partitioner.delegation_spec.compile_specs}


@pytest.mark.parametrize(("make", "key", "value"), KNOWN)
def test_a_key_that_is_given_twice_is_an_error(
    make: Make, key: str, value: bytes
) -> None:
    with pytest.raises(ValueError, match=f"'{key}' is given twice"):
        make(CompileSpec(key, value), CompileSpec(key, value))


@pytest.mark.parametrize("key", SWITCHES)
@pytest.mark.parametrize("value", [b"", b"of", b"0", b"True", b"\xff"])
def test_a_switch_that_is_neither_on_nor_off(key: str, value: bytes) -> None:
    with pytest.raises(ValueError, match=f"'{key}' is ON or OFF, not"):
        cuda(CompileSpec(key, value))


@pytest.mark.parametrize("value", [b"H100", b"sm_90", b""])
def test_a_misdescribed_gpu(value: bytes) -> None:
    with pytest.raises(
        ValueError, match="is not a description of a GPU|gives no memory"
    ):
        cuda(CompileSpec("gpu", value))


@pytest.mark.parametrize("specs", [[], [CompileSpec("target_device", b"cuda:0")]])
def test_cuda_partitioner_is_to_be_told_its_method(specs: list[CompileSpec]) -> None:
    """By a warning: partitioning needs none, as ExecuTorch's own tests do it."""
    with pytest.warns(RuntimeWarning, match="generate_method_name_compile_spec"):
        CudaPartitioner(specs)
