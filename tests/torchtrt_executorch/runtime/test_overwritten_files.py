"""Files that others write into while a program of theirs is prepared: its results stay what they were."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    ExecutorchBackendConfig,
)
from torch import nn

from ...fresh import run
from ...lowering import lower, lower_emulated

X = torch.ones(2, 96)


class Model(nn.Module):
    """A linear layer, in a delegate or not, and a constant of the host's."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(96, 96)
        self.register_buffer("constant", torch.randn(2, 96))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        return y.sin() + self.constant


def build(model: nn.Module, how: str) -> dict[str, bytes]:
    """A program that runs as ``how`` says, and what is beside it."""
    if how == "emulated":
        edge = lower_emulated(model, (X,))
    else:
        edge = lower(model, (X,), *([XnnpackPartitioner()] if how == "XNNPACK" else []))
    config = ExecutorchBackendConfig(external_constants=how == "external")
    program = edge.to_executorch(config)
    files = (program.buffer, *program._tensor_data.values())
    return dict(zip(("model.pte", "model.ptd"), map(bytes, files)))  # noqa: B905


#: What runs each program, and how it is loaded: the code's name for it.
KINDS = [
    *(("kernels", "plain"), ("external", "plain")),
    *(("XNNPACK", "plain"), ("XNNPACK", "keeping")),
    *(("emulated", "plain"), ("emulated", "simulated"), ("emulated", "cloned")),
]
CHANGES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "another model": lambda data, other: other,
    "half": lambda data, other: data[: len(data) // 2],
    "nothing": lambda data, other: b"",
    "zeros": lambda data, other: bytes(len(data)),
}

CODE = """
import sys
from pathlib import Path
import torch
from torchtrt_executorch.runtime import Delegate, load, register_backend

class Keeps(Delegate):
    def __init__(self, context):
        named = [context.named_data[key].data for key in sorted(context.named_data)]
        parts = [context.payload, *named, *map(context.data, sorted(context.named_data))]
        self.parts = [torch.frombuffer(part, dtype=torch.uint8) for part in parts if len(part)]

    def execute(self, args):
        args[-1].tensor.fill_(float(sum(part.sum() for part in self.parts)))

folder, how = Path(sys.argv[1]), sys.argv[2]
if how == "keeping":
    register_backend("XnnpackBackend", Keeps)
x = torch.ones(2, 96)
for each in sorted(folder.iterdir()):
    data = [*each.glob("*.ptd")]
    options = {"simulate_devices": True} if how == "simulated" else {}
    load_it = lambda: load(each / "model.pte", data, emulated_engines=True, **options)
    (right,) = load_it().run(x)
    program = load_it()
    method = program.method()
    if how == "cloned":
        method = method.clone()
    for new in each.glob("*.new"):
        new.with_suffix("").write_bytes(new.read_bytes())
    for _ in range(2):
        (result,) = method(x)
        assert torch.equal(result, right), each
    print(each.name)
"""


@pytest.mark.parametrize(("kind", "how"), KINDS)
def test_what_is_prepared_is_independent_of_its_files(
    kind: str, how: str, tmp_path: Path
) -> None:
    """In a process of its own, which a look at pages that were cut off would end."""
    held, others = (build(Model(seed).eval(), kind) for seed in (0, 1))
    for change, make in CHANGES.items():
        for written in held:
            folder = tmp_path / f"{change}, {written}"
            folder.mkdir()
            for name, data in held.items():
                (folder / name).write_bytes(data)
            (folder / f"{written}.new").write_bytes(
                make(held[written], others[written])
            )
    done = run(CODE, str(tmp_path), how, env={**os.environ}, once=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(os.listdir(tmp_path))


MEMORY = """
import re, sys
import torch
from torchtrt_executorch.runtime import load

def resident():
    status = open("/proc/self/status").read()
    return int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) * 1024

x = torch.ones(2, 4096)
load(sys.argv[1], emulated_engines=True).run(x)  # what is imported late is imported
open("/proc/self/clear_refs", "w").write("5")  # the peak begins here
before = resident()
program = load(sys.argv[2], emulated_engines=True)
program.run(x)
print(resident() - before)
"""


@pytest.mark.parametrize("engine", [False, True])
def test_a_load_holds_weights_once(engine: bool, tmp_path: Path) -> None:
    """64 MiB of them."""
    x = torch.ones(2, 4096)
    for name, width in (("small", 4), ("large", 4096)):
        model = nn.Linear(4096, width, bias=False)
        edge = (lower_emulated if engine else lower)(model, (x,))
        (tmp_path / name).write_bytes(edge.to_executorch().buffer)
    files = [str(tmp_path / name) for name in ("small", "large")]
    done = run(MEMORY, *files, env={**os.environ}, once=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1.1 * 64 * 2**20
