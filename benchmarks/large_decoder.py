"""A decoder of 374 million parameters, compiled and exported: seconds by the clock and of the processor, peak memory.

In two steps, and in one: ``to_edge_transform_and_lower`` with a ``TensorRTPartitioner`` that compiles.
Each way has a process of its own, since a peak is never given back. Engines are emulated, so
that what is measured is everything around TensorRT.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, LAYERS, TOKENS = 32_000, 1_024, 16, 24, 64
_GIB = 2**30

WAYS = ("compile and export", "one call")


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.before(x)).unflatten(-1, (3, HEADS, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind()
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.after(x))))


class Decoder(nn.Module):
    """Token numbers (1, tokens) to logits (1, tokens, vocabulary), float32."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(_Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _GIB


def measure(way: str) -> list[tuple[str, float, float, float]]:
    """Return per stage its name, seconds, seconds of CPU, and the process's peak so far in GiB.

    Args:
        way: One of :data:`WAYS`.
    """
    import torch_tensorrt
    from executorch.exir import to_edge_transform_and_lower
    from torch_tensorrt.executorch import TensorRTPartitioner

    from torchtrt_executorch import emulated_engines

    rows: list[tuple[str, float, float, float]] = []
    torch.manual_seed(0)
    model = Decoder().eval()
    tokens = torch.arange(TOKENS)[None]
    rows.append(("the model itself", 0.0, 0.0, _peak()))

    def timed(name: str, stage: Any) -> Any:
        start, used = time.perf_counter(), time.process_time()
        result = stage()
        seconds = time.perf_counter() - start
        rows.append((name, seconds, time.process_time() - used, _peak()))
        return result

    settings = {"min_block_size": 1, "target_executorch": True}
    with emulated_engines(), torch.no_grad():
        if way == WAYS[0]:
            compiled = timed(
                "compile",
                lambda: torch_tensorrt.compile(
                    model, ir="dynamo", arg_inputs=[tokens], **settings
                ),
            )
            edge = timed("export", lambda: torch_tensorrt.executorch.export(compiled))
        else:
            program = timed("trace", lambda: torch.export.export(model, (tokens,)))
            partitioners = [TensorRTPartitioner(compile_settings=settings)]
            edge = timed(
                "one call",
                lambda: to_edge_transform_and_lower(program, partitioner=partitioners),
            )
        timed("to_executorch", edge.to_executorch)
    return rows


def main() -> None:
    """Print a table for each way."""
    module = ("-W", "ignore", "-m", "benchmarks.large_decoder")
    for way in WAYS:
        command = [sys.executable, *module, "--measure", way]
        process = subprocess.run(command, capture_output=True, text=True, check=True)
        print(f"{way:<20}{'seconds':>10}{'of CPU':>10}{'peak GiB':>10}")
        for name, *figures in json.loads(process.stdout.splitlines()[-1]):
            print(f"{name:<20}" + "".join(f"{figure:>10.1f}" for figure in figures))


if __name__ == "__main__":
    if "--measure" in sys.argv:
        print(json.dumps(measure(sys.argv[-1])))
    else:
        main()
