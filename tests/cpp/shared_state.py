"""Two methods over one state on a device, in ExecuTorch's C++ runtime: prefill and decode, in small.

Each pair of backends, with stand-ins for a GPU's delegates, on a host that gives both methods the arenas
that they share (``examples/cpp/shared_memory.h``).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy
import standin
import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
from executorch.exir.passes import MemoryPlanningPass
from torch.export import export

KINDS = ("CudaBackend", "TensorRTBackend")
ORDER = ("prefill", "decode", "decode", "prefill", "decode", "decode", "decode")
SIZE = 64


class Step(torch.nn.Module):
    """A state that is made of itself and an input, and what comes of both; a second buffer of one method's."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.register_buffer("state", torch.rand(SIZE, SIZE))
        self.register_buffer("past", torch.zeros(SIZE, SIZE))
        self.counts = counts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state.copy_(torch.mm(self.state, x) + x)
        if self.counts:
            self.past.copy_(self.past + x)
            return self.state - self.past
        return self.state + x


def check(host: Path, folder: Path) -> int:
    """Run all pairs, print a line for each, and return how many are wrong."""
    wrong = 0
    for one in KINDS:
        for other in KINDS:
            for streams in ("own", "both"):
                worst = _check(
                    host, folder / f"{one[0]}{other[0]}", (one, other), streams
                )
                wrong += not worst <= 2e-5
                print(
                    f"shared state, {one}, {other}, {streams}: {worst:.1e}", flush=True
                )
    return wrong


def _check(host: Path, folder: Path, backends: tuple[str, str], streams: str) -> float:
    torch.manual_seed(0)
    models = {"prefill": Step(counts=False), "decode": Step(counts=True)}
    models["decode"].state = models["prefill"].state
    folder.mkdir(parents=True, exist_ok=True)
    x = torch.zeros(SIZE, SIZE)
    edge = to_edge(
        {name: export(model, (x,)) for name, model in models.items()},
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    ).to_backend({name: standin.Groups(standin.ends_and_begins(())) for name in models})
    for name, backend in zip(models, backends, strict=True):
        for each in edge.exported_program(name).graph_module.children():
            if getattr(each, "backend_id", "") == standin.StandInBackend.__name__:
                each._backend_id = backend
    planning = MemoryPlanningPass(share_mutable_buffers=True)
    config = ExecutorchBackendConfig(memory_planning_pass=planning)
    edge.to_executorch(config).save(str(folder / "program.pte"))
    expected, calls = [], []
    for index, name in enumerate(ORDER):
        call = folder / f"call{index}"
        call.mkdir(exist_ok=True)
        x = torch.rand(SIZE, SIZE, generator=torch.Generator().manual_seed(index))
        x /= SIZE
        numpy.save(call / "input_0.npy", x.numpy())
        expected.append(models[name](x).clone())
        calls.append(f"{name}:{call}")
    done = subprocess.run(
        [str(host), str(folder / "program.pte"), *calls],
        capture_output=True,
        text=True,
        env={**os.environ, "STREAM": streams},
        timeout=300,
    )
    if done.returncode:
        print(done.stderr.strip()[-500:])
        return float("inf")
    worst = 0.0
    for index, want in enumerate(expected):
        got = torch.from_numpy(numpy.load(folder / f"call{index}" / "output_0.npy"))
        difference = (got - want).abs().max().item() / max(1.0, want.abs().max().item())
        worst = max(worst, difference if difference == difference else float("inf"))
    return worst
