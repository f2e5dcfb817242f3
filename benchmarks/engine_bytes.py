"""From the engine in a program to the delegate's blob, beside upstream's code and a bare copy."""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Callable

import torch
import torch_tensorrt
from packaging.version import Version
from rich.console import Console
from rich.table import Table
from torch.export import ExportedProgram
from torch_tensorrt.executorch import TensorRTBackend
from torch_tensorrt.executorch.engines.record import Slot
from torch_tensorrt.executorch.serialization import (
    deserialize_engine,
)

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.overlay.upstream import installed_release, load_upstream

MIB = 1 << 20
UPSTREAM = "torch_tensorrt.executorch.backend"
FAST = Version("2.14")
"""Before, upstream takes seconds per MiB: one is enough to see it."""


@dataclass
class Cost:
    """Seconds of the best run, and the most that was allocated at a time, in bytes."""

    seconds: float
    peak: int


def measure(step: Callable[[], Any], runs: int) -> Cost:
    """Run ``step`` for its time, and once more for its memory."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    tracemalloc.start()
    try:
        step()
        return Cost(min(times), tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


class Relu(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu()


class EngineCall(torch.nn.Module):
    """A partition: one engine, called by its record, its bytes in the buffer ``engine``."""

    def __init__(self, record: list[Any]) -> None:
        super().__init__()
        self.register_buffer("engine", torch.zeros(1, dtype=torch.uint8))
        self.before, self.behind = record[: Slot.ENGINE], record[Slot.ENGINE + 1 :]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        call = torch.ops.tensorrt.no_op_placeholder_for_execute_engine
        return call([x], *self.before, self.engine, *self.behind)[0]


def partition() -> ExportedProgram:
    """Return an exported program with one engine; its bytes are ``state_dict["engine"]``."""
    x = torch.randn(2, 4)
    with emulated_engines():
        module = torch_tensorrt.compile(
            Relu().eval(), ir="dynamo", arg_inputs=[x], min_block_size=1
        )
    import_module("torch_tensorrt.dynamo.runtime.meta_ops.register_meta_ops")
    (engine,) = [each.engine for each in module.modules() if hasattr(each, "engine")]
    return torch.export.export(EngineCall(list(engine.serialized_info)), (x,))


def main() -> None:
    """Print what upstream's preprocess, ours and ``bytes(memoryview(tensor))`` cost."""
    program = partition()
    release = installed_release("torch-tensorrt") or ""
    upstream = load_upstream(UPSTREAM)
    table = Table(title="From an engine's tensor to the delegate's blob")
    for column in ("engine", "code", "time", "MiB/s", "peak / engine"):
        side: Any = "left" if column == "code" else "right"
        table.add_column(column, justify=side, no_wrap=True)
    for size, runs in ((MIB, 9), (64 * MIB, 9), (1024 * MIB, 2)):
        tensor = torch.randint(0, 256, (size,), dtype=torch.uint8)
        program.state_dict["engine"] = tensor
        ours = partial(TensorRTBackend.preprocess, program, [])
        engine, _ = deserialize_engine(memoryview(ours().processed_bytes))
        assert engine == copied(tensor)
        del engine
        costs = {
            "ours": measure(ours, runs),
            "bytes(memoryview(tensor))": measure(partial(copied, tensor), runs),
        }
        if size == MIB or Version(release) >= FAST:
            theirs = partial(upstream.TensorRTBackend.preprocess, program, [])
            assert theirs().processed_bytes == ours().processed_bytes
            costs[f"torch-tensorrt {release}"] = measure(theirs, 1)
        for code, cost in costs.items():
            table.add_row(
                f"{size // MIB} MiB",
                code,
                f"{cost.seconds * 1e3:,.2f} ms",
                f"{size / MIB / cost.seconds:,.1f}",
                f"{cost.peak / size:.2f}",
            )
        table.add_section()
    # ExecuTorch looks backends up among the subclasses that are alive.
    del upstream, sys.modules[f"_upstream.{UPSTREAM}"]
    gc.collect()
    Console().print(table)


def copied(tensor: torch.Tensor) -> bytes:
    """Return the tensor's bytes by one copy: what no code that makes bytes of it can beat."""
    return bytes(memoryview(tensor.numpy()))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
