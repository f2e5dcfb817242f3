"""Norms, gates and residuals beside products of one row, as ExecuTorch's CUDA backend has them: which one launch computes.

    TRITON_INTERPRET=1 python tests/backends/cuda/quantized/neighbors.py

prints for each how far it is off the model, by the largest value, how many launches of the kernel there are, and how
many norms, activations, additions and matmuls are left beside them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
import torchao.quantization as q
from torch import nn
from torch.nn import functional as F
from torchao.quantization.granularity import PerGroup

WIDTH, INNER = 64, 32
INT8 = q.Int8WeightOnlyConfig()
INT4 = q.IntxWeightOnlyConfig(torch.int4, PerGroup(32))
OPERATOR = "executorch_cuda_quantized.gemv"
LEFT = (
    ("aten.rms_norm", "aten.rsqrt", "aten.native_layer_norm"),
    ("aten.silu", "aten.gelu"),
    ("aten.add",),
    ("aten.mm", "aten.addmm", "aten.linear"),
)


class SpelledOut(nn.Module):
    """RMSNorm as transformers' models have it."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        mean = wide.pow(2).mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(mean + self.eps)
        return self.weight * wide.to(x.dtype)


class Layer(nn.Module):
    """Linears ``a``, ``b``, ``c`` of a row and ``down`` back, and a norm, as ``join`` has them read one another."""

    def __init__(
        self,
        join: Callable[..., torch.Tensor],
        norm: nn.Module | None = None,
        scheme: Any = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.RMSNorm(WIDTH, 1e-6) if norm is None else norm
        for parameter in self.norm.parameters():
            parameter.data = torch.rand_like(parameter) + 0.5
        self.a, self.b = (nn.Linear(WIDTH, INNER, bias=bias) for _ in range(2))
        self.c = nn.Linear(WIDTH, INNER // 2, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=bias)
        self.join = join
        self.to(torch.bfloat16).eval()
        if scheme is not None:
            q.quantize_(self, scheme)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.join(self, x)


def several(m: Layer, x: torch.Tensor) -> torch.Tensor:
    y = m.norm(x)
    return torch.cat([m.a(y).tanh(), m.b(y).tanh(), m.c(y).tanh()], -1)


def gated(
    m: Layer, x: torch.Tensor, activation: Callable[..., torch.Tensor] = F.silu
) -> torch.Tensor:
    y = m.norm(x)
    return x + m.down(activation(m.a(y)) * m.b(y))


def turned(m: Layer, x: torch.Tensor) -> torch.Tensor:
    y = m.norm(x)
    return m.down(m.b(y) * F.gelu(m.a(y), approximate="tanh")) + x


def two_layers(m: Layer, x: torch.Tensor) -> torch.Tensor:
    return gated(m, gated(m, x), F.gelu)


def read_twice(m: Layer, x: torch.Tensor) -> torch.Tensor:
    y = m.norm(x)
    return torch.cat([m.a(y).tanh(), m.b(y).tanh(), m.c(y).tanh(), y], -1)


def gate_read_twice(m: Layer, x: torch.Tensor) -> torch.Tensor:
    y = m.norm(x)
    gate = F.silu(m.a(y))
    return torch.cat([gate * m.b(y), gate], -1)


def two_gates(m: Layer, x: torch.Tensor) -> torch.Tensor:
    y = m.norm(x)
    return F.silu(m.a(y)) * F.silu(m.b(y))


def doubled(m: Layer, x: torch.Tensor) -> torch.Tensor:
    y = m.a(x)
    return y + y


def added_in_part(m: Layer, x: torch.Tensor) -> torch.Tensor:
    return m.a(x) + x[..., :1]


def added_twice_as_much(m: Layer, x: torch.Tensor) -> torch.Tensor:
    return torch.add(x[..., :INNER], m.a(x), alpha=2)


def of_heads(m: Layer, x: torch.Tensor) -> torch.Tensor:
    y = m.norm(x.view(1, -1, WIDTH // 2)).view(1, WIDTH)
    return torch.cat([m.a(y).tanh(), m.b(y).tanh(), m.c(y).tanh()], -1)


def on(activation: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda m, x: gated(m, x, activation)


#: By name: a module, and how many launches, norms, activations, additions and matmuls it is to have.
CASES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "query, key, value": (Layer(several), (1, 0, 0, 0, 0)),
    "spelled out": (Layer(several, SpelledOut(WIDTH)), (1, 0, 0, 0, 0)),
    "no eps": (Layer(several, nn.RMSNorm(WIDTH)), (1, 0, 0, 0, 0)),
    "large eps": (Layer(several, SpelledOut(WIDTH, 0.5)), (1, 0, 0, 0, 0)),
    # Few bits leave no instruction for a norm, of which an addition is left where it is spelled out.
    "of int4": (Layer(several, scheme=INT4), (1, 1, 0, 0, 0)),
    "a gate": (Layer(gated), (2, 0, 0, 0, 0)),
    "a gate of int8": (Layer(gated, scheme=INT8), (2, 1, 0, 0, 0)),
    "a gate of int4": (Layer(gated, SpelledOut(WIDTH), INT4), (2, 1, 0, 1, 0)),
    "turned": (Layer(turned, scheme=INT8), (2, 1, 0, 0, 0)),
    "two layers": (Layer(two_layers, scheme=INT8), (4, 2, 0, 0, 0)),
    "of tanh": (Layer(on(torch.tanh), scheme=INT8), (2, 1, 0, 0, 0)),
    "biases": (Layer(gated, scheme=INT8, bias=True), (2, 1, 1, 3, 0)),
    "LayerNorm": (Layer(several, nn.LayerNorm(WIDTH)), (1, 1, 0, 0, 0)),
    "no weight": (
        Layer(several, nn.RMSNorm(WIDTH, elementwise_affine=False)),
        (1, 1, 0, 0, 0),
    ),
    "of heads": (Layer(of_heads, nn.RMSNorm(WIDTH // 2)), (1, 1, 0, 0, 0)),
    "read twice": (Layer(read_twice), (1, 1, 0, 0, 0)),
    "gate read twice": (Layer(gate_read_twice, scheme=INT8), (1, 1, 1, 0, 0)),
    "two gates": (Layer(two_gates, scheme=INT8), (1, 1, 2, 0, 0)),
    "doubled": (Layer(doubled, scheme=INT8), (1, 0, 0, 1, 0)),
    "added in part": (Layer(added_in_part, scheme=INT8), (1, 0, 0, 1, 0)),
    "added by a factor": (Layer(added_twice_as_much, scheme=INT8), (1, 0, 0, 1, 0)),
}


def main() -> None:
    """Print it, as JSON."""
    from executorch.backends.cuda._edge_calls import is_call
    from executorch.backends.cuda.quantized.pack_weights import pack_quantized_weights
    from executorch.exir import EdgeCompileConfig, to_edge

    whole = [
        getattr(torch.ops.aten, name).default
        for name in ("linear", "rms_norm", "silu", "gelu")
    ]
    config = EdgeCompileConfig(_check_ir_validity=False, preserve_ops=whole)
    found = {}
    for name, (model, _) in CASES.items():
        x = torch.linspace(-2, 3, WIDTH, dtype=torch.bfloat16)[None]
        with torch.no_grad():
            wanted = model(x).float()
        edge = to_edge(torch.export.export(model, (x,)), compile_config=config)
        program = edge.exported_program()
        pack_quantized_weights(program)
        calls = [n for n in program.graph.nodes if n.op == "call_function"]
        (result,) = [program.module()(x)]
        off = (result.float() - wanted).abs().max() / wanted.abs().max()
        counts = [sum(OPERATOR in str(n.target) for n in calls)]
        counts += [sum(is_call(n, names) for n in calls) for names in LEFT]
        found[name] = off.item(), *counts
    print(json.dumps(found))


if __name__ == "__main__":
    main()
