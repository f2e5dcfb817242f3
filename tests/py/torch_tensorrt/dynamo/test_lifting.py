"""Graphs made programs: names of what is lifted, and values that compiling left out."""

from __future__ import annotations

import torch
import torch_tensorrt
from torch_tensorrt.dynamo._lifting import lifted_program

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.runtime import load


class Namesakes(torch.nn.Module):
    """Its buffers are called like an input, and like each other once dots are gone."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("x", torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("a_b", torch.tensor([2.0, 4.0, 8.0]))
        self.a = torch.nn.Module()
        self.a.register_buffer("b", torch.tensor([5.0, 7.0, 9.0]))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * self.x + self.a.b * self.a_b - y


def test_buffers_called_like_inputs() -> None:
    model, inputs = Namesakes(), (torch.rand(3), torch.rand(3))
    graph_module = torch.export.export(model, inputs).module(check_guards=False)
    program = lifted_program(graph_module)
    assert {*program.state_dict} == {"x", "a_b", "a.b"}
    assert program.graph_signature.user_inputs == ("x", "y")
    torch.testing.assert_close(program.module()(*inputs), model(*inputs))


class Doubles(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu() * 2.5


def test_casts_that_compiling_added() -> None:
    """Under ``truncate_double`` upstream casts around engines, and gives the casts no value."""
    x = torch.linspace(-1, 1, 6, dtype=torch.float64)
    with emulated_engines():
        compiled = torch_tensorrt.compile(
            Doubles().eval(),
            ir="dynamo",
            arg_inputs=[x],
            min_block_size=1,
            truncate_double=True,
        )
        edge = torch_tensorrt.executorch.export(compiled)
        (output,) = load(edge.to_executorch().buffer).run(x)
    assert output.dtype == torch.float64
    torch.testing.assert_close(output, Doubles()(x), rtol=1e-6, atol=1e-6)
