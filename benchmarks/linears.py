"""A vision transformer's linears behind TensorRT: who runs them, with ``whole-operators`` and without.

Its 12 blocks have the operators of ViT-B/16 in a narrower width, on which no count depends. Nothing
is compiled for TensorRT: its partitioner stands first in the list, and XNNPACK takes what it can.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

LAYERS, WIDTH, HEADS, PIXELS, PATCH, CLASSES = 12, 64, 4, 64, 16, 10
PARTNERS = (("xnnpack",), ("tensorrt", "xnnpack"), ("xnnpack", "tensorrt"))
SWITCH = "TORCHTRT_EXECUTORCH_SKIP"


class ViT(nn.Module):
    """Images (1, 3, pixels, pixels) to logits (1, classes), float32."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, (PIXELS // PATCH) ** 2 + 1, WIDTH))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        patches = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token, patches], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def measure(partners: tuple[str, ...]) -> dict[str, int]:
    """Return how many delegates there are, and kernels of ExecuTorch's, by operator."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.exir import to_edge_transform_and_lower
    from torch_tensorrt.executorch import TensorRTPartitioner

    makers = {"xnnpack": XnnpackPartitioner, "tensorrt": TensorRTPartitioner}
    with torch.no_grad():
        program = torch.export.export(
            ViT().eval(), (torch.randn(1, 3, PIXELS, PIXELS),)
        )
    edge = to_edge_transform_and_lower(
        program, partitioner=[makers[name]() for name in partners]
    )
    plan = edge.to_executorch().executorch_program.execution_plan[0]
    calls = Counter(
        plan.operators[call.instr_args.op_index].name
        for call in plan.chains[0].instructions
        if hasattr(call.instr_args, "op_index")
    )
    return {"delegates": len(plan.delegates), **calls}


def main() -> None:
    """Print a row for each list of partitioners, with the patch and without."""
    table = Table(
        "partitioners", "patch", "delegates", "addmm", "all kernels", title="Linears"
    )
    for partners in PARTNERS:
        for skipped in (False, True):
            counts = _apart(partners, skipped)
            delegates = counts.pop("delegates")
            addmm = sum(n for name, n in counts.items() if "addmm" in name)
            numbers = (delegates, addmm, sum(counts.values()))
            state = "off" if skipped else "on"
            table.add_row(", ".join(partners), state, *map(str, numbers))
    Console().print(table)


def _apart(partners: tuple[str, ...], skipped: bool) -> dict[str, int]:
    command = (sys.executable, "-W", "ignore", "-m", "benchmarks.linears", "--measure")
    done = subprocess.run(
        (*command, *partners),
        env=os.environ | {SWITCH: "whole-operators" if skipped else ""},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    if "--measure" in sys.argv:
        print(json.dumps(measure(tuple(sys.argv[sys.argv.index("--measure") + 1 :]))))
    else:
        main()
