"""Complex values by TensorRT: engines compute with their parts, and the host has the Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from torch import Tensor

from torchtrt_executorch.runtime import load

from ...lowering import backends, lower, tensorrt_partitioner

X = torch.linspace(-3, 3, 128).reshape(8, 16).sin()


def rotary(x: Tensor) -> Tensor:
    angles = torch.outer(torch.arange(8.0), 0.1 ** torch.arange(8.0))
    turns = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(torch.view_as_complex(x.reshape(8, 8, 2)) * turns)


def correlation(x: Tensor) -> Tensor:
    spectrum = torch.fft.rfft((x * 2 + 1).sin())
    return torch.fft.irfft(spectrum * spectrum.flip(0).conj(), n=x.shape[-1]).exp()


#: Of each, the Fourier transforms of a call.
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "rotary": (rotary, 0),
    "a complex number": (lambda x: ((x.sin() + 1j * x.cos()) * 1j).real.exp(), 0),
    "correlation": (correlation, 2),
    "a mixer": (lambda x: (x + torch.fft.fft2(x).real).relu(), 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_engines_compute_with_real_and_imaginary_parts(name: str) -> None:
    function, transforms = FUNCTIONS[name]
    edge = lower(function, (X,), tensorrt_partitioner(), XnnpackPartitioner())
    assert {*backends(edge)} == {"TensorRTBackend"}
    loaded = load(edge.to_executorch().buffer)
    (found,) = loaded.run(X)
    torch.testing.assert_close(found, function(X), rtol=1e-4, atol=1e-5)
    counts = loaded.stats().kernels
    kernels = {name: counts[name] for name in counts if name.startswith("aten::")}
    assert kernels.pop("aten::_fft_r2c.out", 0) == transforms
    assert {*kernels} == ({"aten::view_as_real_copy.out"} if transforms else set())
