"""Complex arithmetic as real arithmetic: values are eager's, in PyTorch and in ExecuTorch's own runtime."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.passes._complex_arithmetic import with_real_arithmetic
from executorch.runtime import Runtime
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._export.verifier import SpecViolationError
from torch.export import ExportedProgram, export

from ...lowering import BaseModel, Function, lower

F = nn.functional
X = torch.linspace(-3, 3, 128).reshape(8, 16).sin()
SOUND = torch.linspace(0, 300, 512).reshape(2, 256).sin()


class Spectrogram(nn.Module):
    def __init__(self, *, of_parts: bool) -> None:
        super().__init__()
        self.of_parts = of_parts
        self.register_buffer("window", torch.hann_window(64))

    def forward(self, sound: Tensor) -> Tensor:
        found = torch.stft(sound, 64, 16, window=self.window, return_complex=True)
        if self.of_parts:
            return (found.real**2 + found.imag**2).clamp(min=1e-6).log10()
        return found.abs()


class FourierLayer(nn.Module):
    """A Fourier neural operator's: complex weights, for some of the frequencies."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(0.1 * torch.randn(8, 8, 6, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x[None])
        low = torch.einsum("bix,iox->box", spectrum[..., :6], self.weight)
        return F.gelu(torch.fft.irfft(F.pad(low, (0, 3)), n=x.shape[-1]) + x)


class Rotary(nn.Module):
    """A rotary embedding as Llama's reference code has it."""

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(8.0), 0.1 ** torch.arange(8.0))
        turned = torch.view_as_complex(x.reshape(8, 8, 2)) * torch.polar(
            torch.ones_like(angles), angles
        )
        return torch.view_as_real(turned).flatten(1)


class Vocoder(BaseModel, window=lambda: torch.hann_window(30)):
    """An inverse STFT of lengths and angles."""

    def forward(self, x: Tensor) -> Tensor:
        spectrum = x.T.exp() * (torch.cos(x.T) + 1j * torch.sin(x.T))
        return torch.istft(spectrum[None], 30, 8, window=self.window)


def correlation(x: Tensor) -> Tensor:
    """As in Autoformer."""
    spectrum = torch.fft.rfft(x)
    return torch.fft.irfft(spectrum * spectrum.flip(0).conj(), n=x.shape[-1])


MODELS: dict[str, tuple[nn.Module, Tensor]] = {
    "magnitudes of stft": (Spectrogram(of_parts=False), SOUND),
    "parts of stft": (Spectrogram(of_parts=True), SOUND),
    "rfft": (Function(lambda x: torch.fft.rfft(2 * x).abs() + 1), X),
    "fft2, a mixer": (Function(lambda x: x + torch.fft.fft2(x).real), X),
    "ifft2": (Function(lambda x: torch.fft.ifft2(torch.fft.rfft2(x)).imag), X),
    "FNO": (FourierLayer(), X),
    "Autoformer": (Function(correlation), X),
    "rotary": (Rotary(), X),
    "norms of complex": (Function(lambda x: torch.complex(x, x + 1).angle()), X),
    "numbers": (
        Function(
            lambda x: ((torch.complex(x, x + 2) + 1 - 2j) * 3 / (1 + 1j) / 2 - 2.5).imag
            ** 2
        ),
        X,
    ),
    "powers": (Function(lambda x: (torch.complex(x, x + 2) ** 2 * 1j).abs()), X),
    "real values and a complex number": (
        Function(lambda x: (x.exp() * (x.cos() + 1j * x.sin()) - 2j + x / 1j).imag),
        X,
    ),
    "integers and a complex number": (
        Function(lambda x: torch.exp(torch.arange(8) * 1j).real + x[:, :8]),
        X,
    ),
    "a full tensor": (
        Function(lambda x: (torch.full((16,), 1 + 2j) * x).imag + (x + 1j).abs()),
        X,
    ),
    "istft, as Vocos": (Vocoder(), X),
    "fftshift": (Function(lambda x: torch.fft.fftshift(torch.fft.fft(x)).imag), X),
    "logarithms": (
        Function(
            lambda x: (torch.complex(x, x + 2).log2() * 1j).real + (x + 1j).log10().imag
        ),
        X,
    ),
    "convolution": (
        Function(
            lambda x: F.conv1d(
                torch.complex(x, x + 1), (x[:4, :8] + 1j)[..., None]
            ).imag
        ),
        X[:, :8].contiguous(),
    ),
    "index_put": (
        Function(
            lambda x: torch.complex(x, x)
            .index_put((torch.tensor([1]),), x[0] * 1j)
            .imag
        ),
        X,
    ),
    "conjugate": (Function(lambda x: torch.complex(x, x + 1).conj().imag), X),
    "rsub": (Function(lambda x: (1 - torch.complex(x, x + 2)).abs()), X),
    "division": (Function(lambda x: (1 / torch.complex(x, x + 2)).imag), X),
}


def real(model: nn.Module, x: Tensor) -> ExportedProgram:
    program = with_real_arithmetic(export(model.eval(), (x,)))
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and value.is_complex():
            assert "_fft_r2c" in str(node.target), node
    return program


@pytest.mark.parametrize("name", MODELS)
def test_in_the_runtime_of_executorch(name: str) -> None:
    model, x = MODELS[name]
    real(model, x)
    edge = lower(model, (x,), XnnpackPartitioner())
    data = edge.to_executorch().buffer
    program = Runtime.get().load_program(data)  # which a method doesn't keep alive
    found = program.load_method("forward").execute([x])[0]
    torch.testing.assert_close(found, model(x).detach(), rtol=1e-4, atol=1e-5)


TRANSFORMS = [
    *(torch.fft.fft, torch.fft.ifft, torch.fft.rfft, torch.fft.irfft),
    *(torch.fft.hfft, torch.fft.ihfft, torch.fft.fft2, torch.fft.ifft2),
    *(torch.fft.rfft2, torch.fft.irfft2, torch.fft.fftn, torch.fft.irfftn),
]
COMPLEX = {"irfft", "hfft", "irfft2", "irfftn", "ifft", "ifft2"}


@settings(max_examples=40)
@given(
    transform=st.sampled_from(TRANSFORMS),
    sizes=st.tuples(*[st.integers(2, 7)] * 3),
    norm=st.sampled_from(["forward", "backward", "ortho"]),
    data=st.data(),
)
def test_every_transform(
    transform: Callable[..., Tensor],
    sizes: tuple[int, ...],
    norm: str,
    data: st.DataObject,
) -> None:
    name = transform.__name__.removeprefix("fft_")
    options: dict[str, Any] = {"norm": norm}
    dims = st.permutations(range(-3, 3)).map(lambda found: found[:1])
    if name.endswith(("2", "n")):
        options["dim"] = data.draw(st.sampled_from([(0, 1), (2, 0), (-1, -2), (1, 2)]))
    else:
        (options["dim"],) = data.draw(dims)

    def function(x: Tensor) -> Tensor:
        if name in COMPLEX:
            x = torch.complex(x, x.cos())
        found = transform(x, **options)
        return torch.view_as_real(found.resolve_conj()) if found.is_complex() else found

    x = torch.linspace(-2, 5, sizes[0] * sizes[1] * sizes[2]).reshape(sizes).sin()
    program = real(Function(function), x)
    torch.testing.assert_close(program.module()(x), function(x), rtol=1e-4, atol=1e-4)


def test_complex_weights_are_kept_as_their_parts() -> None:
    model, x = MODELS["FNO"]
    program = export(model, (x,))
    found = with_real_arithmetic(program)
    assert found.state_dict["weight"].shape == (8, 8, 6, 2)
    assert program.state_dict["weight"].shape == (8, 8, 6)


def test_programs_without_complex_values_stay() -> None:
    program = export(Function(torch.sin), (X,))
    assert with_real_arithmetic(program) is program


def test_a_complex_result_stays() -> None:
    program = export(Function(torch.fft.rfft), (X,))
    assert with_real_arithmetic(program) is program


class Inverse(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.inv(torch.complex(x[:, :8], x[:, 8:])).real


class Inverted(BaseModel, inverse=lambda: Inverse()):
    def forward(self, x: Tensor) -> Tensor:
        return self.inverse(2 * x)


@pytest.mark.parametrize("lists", [[], [XnnpackPartitioner()]], ids=["none", "XNNPACK"])
def test_the_error_names_what_has_no_form_in_real_numbers(lists: list[Any]) -> None:
    with pytest.raises(SpecViolationError) as raised:
        to_edge_transform_and_lower(export(Inverted(), (X,)), partitioner=lists)
    reason = "aten.linalg_inv_ex.default (node linalg_inv_ex) of inverse has no form in real numbers"
    assert reason in str(raised.value)


def test_what_has_no_form_in_real_numbers_stays_complex(
    caplog: pytest.LogCaptureFixture,
) -> None:
    program = export(Inverted(), (X,))
    with caplog.at_level(logging.WARNING):
        found = with_real_arithmetic(program)
    assert [str(n.target) for n in found.graph.nodes] == [
        str(n.target) for n in program.graph.nodes
    ]
    assert "complex values stay as they are: aten.linalg_inv_ex.default" in caplog.text
