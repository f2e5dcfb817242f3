"""How long programs of real engines take on a GPU, beside TensorRT and AOTInductor alone.

    python tests/gpu/time_engines.py library FOLDER     # where there is a compiler: AOTInductor's part
    PYTHONPATH=. python tests/gpu/time_engines.py run FOLDER
    PYTHONPATH=. python tests/gpu/time_engines.py own           # what the runtime itself takes

The two may be done by different Pythons, with the same PyTorch. ``run`` prints microseconds a call.
``own`` needs no TensorRT: its engines do nothing.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).parent))
from middle import SHAPE, Middle, read, write  # type: ignore[import-not-found]

ROUNDS, CALLS = 7, 200


def microseconds(call: Callable[..., object], *args: Any) -> float:
    """The median of rounds of many calls with ``args``, each round waited for at its end."""
    for _ in range(20):
        call(*args)
    rounds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call(*args)
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - start) / CALLS * 1e6)
    return statistics.median(rounds)


def row(name: str, **figures: float) -> None:
    """Print one row."""
    print(
        name.ljust(24),
        *(f"{k} {v:.1f}" for k, v in figures.items()),
        sep="  ",
        flush=True,
    )


def copied_by_hand(
    x: torch.Tensor, y: torch.Tensor, between: Callable[[], None]
) -> Callable[[], None]:
    """What copies host memory to ``x``, and ``y`` back to it, by hand, with something in between."""
    host, result, stream = x.cpu(), y.cpu(), torch.cuda.current_stream()
    sent, fetched = host.pin_memory(), result.pin_memory()

    def by_hand() -> None:
        sent.copy_(host)
        x.copy_(sent, non_blocking=True)
        between()
        fetched.copy_(y, non_blocking=True)
        stream.synchronize()
        result.copy_(fetched)

    return by_hand


def alone(
    plan: bytes, x: torch.Tensor, y: torch.Tensor
) -> tuple[Any, dict[str, Callable[[], object]]]:
    """TensorRT by itself: enqueueing alone, with shapes and addresses, and staged by hand."""
    import tensorrt as trt

    runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
    engine = runtime.deserialize_cuda_engine(plan)
    context = engine.create_execution_context()
    stream = torch.cuda.current_stream()

    def bind(x: torch.Tensor, y: torch.Tensor) -> None:
        context.set_input_shape("x", tuple(x.shape))
        context.set_tensor_address("x", x.data_ptr())
        context.set_tensor_address("y", y.data_ptr())

    def enqueue() -> None:
        context.execute_async_v3(stream.cuda_stream)

    def bound() -> None:
        bind(x, y)
        enqueue()

    by_hand = copied_by_hand(x, y, bound)
    bind(x, y)
    ways = {"enqueue": enqueue, "bound": bound, "by_hand": by_hand}
    return (runtime, engine, context), ways


@torch.no_grad()
def engines() -> None:
    """Programs of one engine."""
    from engine_programs import (  # type: ignore[import-not-found]
        Engine,
        Tensor,
        engine,
        mlp,
        program,
    )

    from torchtrt_executorch.runtime import load

    half = torch.float16
    for name, rows, width, hidden, dtype, dynamic in (
        ("mlp, 8 x 64", 8, 64, 256, torch.float32, False),
        ("dynamic, 8 x 64", 8, 64, 256, torch.float32, True),
        ("float16, 8 x 64", 8, 64, 256, half, False),
        ("4096 wide, 256 x 1024", 256, 1024, 4096, torch.float32, False),
        ("4096 wide, float16", 256, 1024, 4096, half, False),
    ):
        torch.manual_seed(0)
        weights = [
            torch.randn(width, hidden) / width**0.5,
            torch.randn(hidden, width) / hidden**0.5,
        ]
        weights = [w.to(dtype) for w in weights]
        sizes = (-1 if dynamic else rows, width)
        shapes = {"x": ((1, width), (rows, width), (rows, width))} if dynamic else None
        plan = engine(mlp(weights, sizes, dtype == half), shapes, half=dtype == half)
        x = torch.randn(rows, width, device="cuda").to(dtype)
        y = torch.empty_like(x)
        kept, ways = alone(plan, x.clone(), y)
        resident = Tensor((rows, width), dtype, bounded=dynamic)
        planned = [
            Tensor((rows, width), dtype, False, at, dynamic) for at in (0, 2 * x.nbytes)
        ]
        call = [Engine(plan, {"x": 0}, {"y": 1})]
        on_gpu = program([resident, resident], call, [0], [1])
        on_host = program(planned, call, [0], [1])
        method = load(on_gpu).method()
        graphs = load(on_gpu, cuda_graphs=True).method()
        staged = load(on_host).method()
        host = x.cpu()
        right = torch.relu(x @ weights[0].cuda()) @ weights[1].cuda()
        error = max(
            (result.cuda() - right).abs().max().item()
            for result in (
                method(x)[0],
                [graphs(x) for _ in range(4)][-1][0],
                staged(host)[0],
            )
        )
        figures = {key: microseconds(way) for key, way in ways.items()}
        row(
            name,
            **figures,
            program=microseconds(method, x),
            graph=microseconds(graphs, x),
            host=microseconds(staged, host),
            error=error * 1e6,
        )
        del kept


def stacked(folder: Path) -> None:
    """An engine, a library, an engine; and the library by itself."""
    from engine_programs import (
        Engine,
        Library,
        Tensor,
        engine,
        mlp,
        program,
    )

    from torchtrt_executorch.runtime import load
    from torchtrt_executorch.runtime.delegates.aoti import _load, read_payload
    from torchtrt_executorch.runtime.plans.plan import Payload
    from torchtrt_executorch.runtime.reading.files import NamedData
    from torchtrt_executorch.runtime.tensors.memory import CommonTensors

    torch.manual_seed(0)
    weights = [torch.randn(64, 256) / 8, torch.randn(256, 64) / 16]
    plan = engine(mlp(weights, (8, 64)))
    so, blob = read(folder)
    x = torch.randn(8, 64, device="cuda")
    first, second = (weight.cuda() for weight in weights)
    middle = Middle().cuda().eval()

    def part(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ first) @ second

    def eager(x: torch.Tensor) -> torch.Tensor:
        return part(middle(part(x)))

    def check(result: torch.Tensor, right: torch.Tensor) -> None:
        torch.testing.assert_close(result, right, rtol=1e-4, atol=1e-4)

    library = memoryview(so)
    data = {"so": NamedData(library), "blob": NamedData(memoryview(blob))}
    alone: Any = Payload("CudaBackend", "alone", memoryview(b"so\nblob"), {}, data)
    object.__setattr__(alone, "common", CommonTensors())
    runner = _load(alone, read_payload(alone), library, torch.device("cuda", 0))
    tensor = Tensor((8, 64))
    lone = program([tensor, tensor], [Library(so, blob, [0, 1])], [0], [1])
    between = [Tensor((8, 64), at=at) for at in (0, 2048)]
    calls = [
        Engine(plan, {"x": 0}, {"y": 1}),
        Library(so, blob, [1, 2]),
        Engine(plan, {"x": 2}, {"y": 3}),
    ]
    three = program([tensor, *between, tensor], calls, [0], [3])
    with torch.no_grad():
        for name, pte, reference in (
            ("library", lone, middle),
            ("engine, library, engine", three, eager),
        ):
            method = load(pte).method()
            graphs = load(pte, cuda_graphs=True).method()
            twin = method.clone()
            for each in (method, graphs, graphs, graphs, graphs, twin):
                check(each(x)[0], reference(x))
            figures = {"eager": microseconds(reference, x)}
            if name == "library":
                figures["runner"] = microseconds(runner.run, [x])
            row(
                name,
                **figures,
                program=microseconds(method, x),
                graph=microseconds(graphs, x),
                clone=microseconds(twin, x),
            )


class Idle:
    """An engine that does nothing, and its execution context."""

    def create_execution_context(self) -> Idle:
        return self

    def get_tensor_location(self, name: str) -> int:
        return 0

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return SHAPE

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        return True

    def execute_async_v3(self, stream: int) -> bool:
        return True


@torch.no_grad()
def own() -> None:
    """The time that a program takes beside its engine, and copies by hand beside those of a program."""
    from engine_programs import Engine, Tensor, program

    from torchtrt_executorch.runtime import load
    from torchtrt_executorch.runtime.delegates import tensorrt_engine

    trt = SimpleNamespace(TensorLocation=SimpleNamespace(HOST=1))
    with (
        mock.patch.object(tensorrt_engine, "tensorrt_for", lambda *_: trt),
        mock.patch.object(tensorrt_engine, "Log", lambda *_: None),
        mock.patch.object(tensorrt_engine, "deserialized", lambda *_: (Idle(), Idle())),
        mock.patch.object(tensorrt_engine, "check_bindings", lambda *_: None),
    ):
        idle = [Engine(b"no plan" * 8, {"x": 0}, {"y": 1})]
        on_host = [Tensor(SHAPE, on_gpu=False, at=at) for at in (0, 4096)]
        resident = load(program([Tensor(SHAPE)] * 2, idle, [0], [1])).method()
        host = load(program(on_host, idle, [0], [1])).method()
    x = torch.randn(SHAPE, device="cuda")
    row(
        f"Python {sys.version.split()[0]}",
        resident=microseconds(resident, x),
        host=microseconds(host, x.cpu()),
        by_hand=microseconds(copied_by_hand(x, x, lambda: None)),
    )


def main() -> None:
    """Run the command line."""
    command, *folders = sys.argv[1:]
    if command == "own":
        own()
        return
    folder = Path(folders[0])
    if command == "library":
        write(folder)
        return
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    engines()
    stacked(folder)


if __name__ == "__main__":
    main()
