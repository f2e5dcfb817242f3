"""A ``.pte`` in a PyTorch process: this runtime beside ExecuTorch's own and eager.

ExecuTorch's portable kernels are reference implementations, so a program of heavy operators runs
faster on torch's; one of many small operators pays for Python here.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.runtime import Runtime
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.export import export

from torchtrt_executorch.runtime import load
from torchtrt_executorch.runtime.reading.files import read_program

ROUNDS = 7


class SmallSteps(nn.Module):
    """A hundred operators on a few numbers each."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(50):
            x = torch.sin(x) + 1
        return x


class Chain(nn.Module):
    """64 delegates, each behind an operator that stays on the host."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(64):
            x = torch.cumsum(x + 1, 0) * 0.1
        return x


def _models() -> list[tuple[str, nn.Module, torch.Tensor, bool]]:
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    block = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return [
        ("mlp", mlp, torch.randn(32, 256), False),
        ("mlp, XNNPACK", mlp, torch.randn(32, 256), True),
        ("transformer block", block, torch.randn(2, 16, 64), False),
        ("100 small operators", SmallSteps(), torch.randn(8), False),
        ("64-delegate chain", Chain(), torch.randn(8), True),
        ("16 MiB of weights", nn.Linear(2048, 2048), torch.randn(1, 2048), False),
    ]


def _build(model: nn.Module, x: torch.Tensor, xnnpack: bool) -> bytes:
    partitioners = [XnnpackPartitioner()] if xnnpack else None
    edge = to_edge_transform_and_lower(
        export(model.eval(), (x,)), partitioner=partitioners
    )
    return bytes(edge.to_executorch().buffer)


def _microseconds(call: Callable[[], Any], budget: float = 0.05) -> float:
    call()
    start = time.perf_counter()
    call()
    calls = max(1, int(budget / max(time.perf_counter() - start, 1e-6)))
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        rounds.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(rounds)


@torch.no_grad()
def main() -> None:
    """Print medians in microseconds: a call, and reading the file."""
    table = Table(title=f"A .pte on the CPU, median of {ROUNDS} rounds, microseconds")
    for heading in (
        "program",
        "eager",
        "executorch.runtime",
        "this runtime",
        "reading: executorch",
        "reading: this",
    ):
        table.add_column(heading, justify="right")
    for name, model, x, xnnpack in _models():
        pte = _build(model, x, xnnpack)
        ours = load(pte).method("forward")
        program = Runtime.get().load_program(pte)
        theirs = program.load_method("forward")
        torch.testing.assert_close(ours(x)[0], model(x), rtol=1e-3, atol=1e-4)
        calls: list[Callable[[], Any]] = [
            lambda model=model, x=x: model(x),  # type: ignore[misc]
            lambda theirs=theirs, x=x: theirs.execute([x]),  # type: ignore[misc]
            lambda ours=ours, x=x: ours(x),  # type: ignore[misc]
            lambda pte=pte: deserialize_pte_binary(pte),  # type: ignore[misc]
            lambda pte=pte: read_program(pte),  # type: ignore[misc]
        ]
        table.add_row(name, *(f"{_microseconds(call):,.0f}" for call in calls))
    Console().print(table)


if __name__ == "__main__":
    main()
