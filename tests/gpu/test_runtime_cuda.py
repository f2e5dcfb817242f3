"""The CUDA delegate on a real GPU: against eager, with inputs on the device and on the host.

As a script, from the repository's root, it runs the checks and prints a table of latencies beside
eager, ``torch.compile`` and PyTorch's own runner of the same library, all in one process::

    PYTHONPATH=. python tests/gpu/test_runtime_cuda.py
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Callable, Sequence

import pytest
import torch
from torch import nn
from torch.export import export

sys.path.insert(0, str(Path(__file__).parent))
from cuda_programs import resident  # type: ignore[import-not-found]

from torchtrt_executorch.runtime import DeviceError, Program, Transfers, load
from torchtrt_executorch.runtime.delegates.aoti import _library, _load, read_payload
from torchtrt_executorch.runtime.plans.plan import Payload
from torchtrt_executorch.runtime.tensors.memory import CommonTensors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

ROUNDS, CALLS = 7, 100


def _mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
    )


class Alone(Payload):
    """A payload that has nothing in common with others."""

    common = CommonTensors()


@dataclass(frozen=True)
class Case:
    """A model and the shape of its input, float32."""

    name: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]


CASES = (
    Case("mlp, 8 x 64", lambda: _mlp(64), (8, 64)),
    Case("mlp, 512 x 1024", lambda: _mlp(1024), (512, 1024)),
    Case(
        "norm, softmax, 256 x 512",
        lambda: nn.Sequential(nn.LayerNorm(512), nn.Linear(512, 512), nn.Softmax(-1)),
        (256, 512),
    ),
)
RESIDENT, HOST = "device", "host"


@dataclass(frozen=True)
class Built:
    """One model, eager and as programs: with host I/O, and with the caller's device tensors."""

    eager: nn.Module
    x: torch.Tensor
    programs: dict[str, Program]
    graphs: Program


@cache
def build(case: Case) -> Built:
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower

    torch.manual_seed(0)
    model, x = case.model().eval(), torch.randn(*case.shape)
    configs = {HOST: ExecutorchBackendConfig(), RESIDENT: resident()}
    programs = {}
    for name, config in configs.items():
        specs = [CudaBackend.generate_method_name_compile_spec("forward")]
        edge = to_edge_transform_and_lower(
            export(model, (x,)), partitioner=[CudaPartitioner(specs)]
        )
        built = edge.to_executorch(config)
        data = [bytes(ptd) for ptd in built._tensor_data.values()]
        pte = bytes(built.buffer)
        programs[name] = load(pte, data)
        if name == RESIDENT:
            graphs = load(pte, data, cuda_graphs=True)
    return Built(model.cuda(), x, programs, graphs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("side", [RESIDENT, HOST])
def test_agrees_with_eager(case: Case, side: str) -> None:
    built = build(case)
    for _ in range(3):
        x = torch.randn_like(built.x).to("cuda" if side == RESIDENT else "cpu")
        (result,) = built.programs[side].run(x)
        assert result.device.type == x.device.type
        expected = built.eager(x.cuda()).to(x.device)
        torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("case", CASES[:1], ids=lambda case: case.name)
def test_copies_are_the_program_s(case: Case) -> None:
    built = build(case)
    nbytes = built.x.nbytes
    for side, copies in ((RESIDENT, 0), (HOST, 1)):
        program = built.programs[side]
        before = program.stats().copies
        program.run(built.x.to("cuda" if side == RESIDENT else "cpu"))
        after = program.stats().copies
        for direction in ("host_to_device", "device_to_host"):
            old, new = (each.get(direction, Transfers()) for each in (before, after))
            assert new.copies - old.copies == copies
            assert new.nbytes - old.nbytes == copies * nbytes


@pytest.mark.parametrize("case", CASES[:1], ids=lambda case: case.name)
def test_a_host_tensor_for_a_resident_input_is_reported(case: Case) -> None:
    built = build(case)
    with pytest.raises(DeviceError, match=r"CudaBackend.*lives on cpu"):
        built.programs[RESIDENT].run(built.x)


def _latency(call: Callable[[], object]) -> float:
    """Microseconds of one call: the median of rounds of many calls, each round synchronized."""
    for _ in range(10):
        call()
    rounds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - start) / CALLS * 1e6)
    return statistics.median(rounds)


def _runner(program: Program) -> Any:
    """PyTorch's runner of the only library of a program."""
    (plan,) = program._plans.values()
    payload: Any = Alone(**vars(plan.delegates[0]))
    named = read_payload(payload)
    library = _library(payload, named)
    return _load(payload, named, library, torch.device("cuda", 0))


@torch.no_grad()
def _measure(case: Case) -> list[Sequence[str]]:
    built = build(case)
    torch._dynamo.reset()
    compiled = torch.compile(built.eager)
    reduced = torch.compile(built.eager, mode="reduce-overhead")
    runner = _runner(built.programs[RESIDENT])
    graphs = built.graphs.method("forward")
    x, on_device = built.x, built.x.cuda()
    ours = {side: program.method("forward") for side, program in built.programs.items()}
    reference = built.eager(on_device)
    ways: list[tuple[str, str, Callable[[], torch.Tensor]]] = [
        ("eager", RESIDENT, lambda: built.eager(on_device)),
        ("torch.compile", RESIDENT, lambda: compiled(on_device)),
        ("torch.compile, reduce-overhead", RESIDENT, lambda: reduced(on_device)),
        ("AOTInductor's runner", RESIDENT, lambda: runner.run([on_device])[0]),
        ("CUDA delegate", RESIDENT, lambda: ours[RESIDENT](on_device)[0]),
        ("CUDA delegate, cuda_graphs", RESIDENT, lambda: graphs(on_device)[0]),
        ("eager", HOST, lambda: built.eager(x.cuda()).cpu()),
        ("torch.compile", HOST, lambda: compiled(x.cuda()).cpu()),
        ("torch.compile, reduce-overhead", HOST, lambda: reduced(x.cuda()).cpu()),
        ("CUDA delegate", HOST, lambda: ours[HOST](x)[0]),
    ]
    rows = []
    for way, side, call in ways:
        error = (call().cuda() - reference).abs().max().item()
        rows.append((case.name, side, way, f"{error:.1e}", f"{_latency(call):.1f}"))
    return rows


def main() -> None:
    """Check, then print the table."""
    if not torch.cuda.is_available():
        raise SystemExit("needs an NVIDIA GPU")
    for case in CASES:
        for side in (RESIDENT, HOST):
            test_agrees_with_eager(case, side)
    test_copies_are_the_program_s(CASES[0])
    test_a_host_tensor_for_a_resident_input_is_reported(CASES[0])
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: all checks hold")
    rows: list[Sequence[str]] = [("model", "inputs on", "way", "max error", "us")]
    for case in CASES:
        rows += _measure(case)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(text.ljust(n) for text, n in zip(row, widths, strict=True)))


if __name__ == "__main__":
    main()
