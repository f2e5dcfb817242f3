"""The TensorRT delegate on real engines, which TensorRT builds here.

As a script, from the repository's root, where there is no pytest: ``PYTHONPATH=. python
tests/gpu/test_tensorrt_engines.py``.
"""

from __future__ import annotations

import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
trt = pytest.importorskip("tensorrt", reason="needs TensorRT with its builder")

sys.path.insert(0, str(Path(__file__).parent))
from engine_programs import (  # type: ignore[import-not-found]  # noqa: E402
    Engine,
    Tensor,
    engine,
    mlp,
    program,
)

from torchtrt_executorch.runtime import (  # noqa: E402
    InstructionError,
    ProgramError,
    load,
)

HALF = torch.float16
ROWS = Tensor((8, 64))


@cache
def weights(
    width: int = 64, hidden: int = 256, half: bool = False
) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    made = torch.randn(width, hidden) / 8, torch.randn(hidden, width) / 16
    return tuple(each.half() if half else each for each in made)


@cache
def mlp_engine(
    shape: tuple[int, int] = (8, 64), hidden: int = 256, half: bool = False
) -> bytes:
    range_ = ((1, shape[1]), (4, shape[1]), (8, shape[1]))
    shapes = {"x": range_} if -1 in shape else None
    return engine(mlp(weights(shape[1], hidden, half), shape, half), shapes, half=half)


def expected(x: torch.Tensor, hidden: int = 256) -> torch.Tensor:
    first, second = (
        w.to(x.device) for w in weights(x.shape[1], hidden, x.dtype == HALF)
    )
    return torch.relu(x @ first) @ second


def one(
    plan: bytes,
    x: Tensor = ROWS,
    y: Tensor = ROWS,
    **options: Any,
) -> Any:
    pte = program([x, y], [Engine(plan, {"x": 0}, {"y": 1})], [0], [1])
    return load(pte, **options)


def close(result: torch.Tensor, wanted: torch.Tensor) -> None:
    tolerance = 2e-2 if result.dtype == HALF else 1e-5
    torch.testing.assert_close(result, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize("half", [True, False])
def test_agrees_with_eager(on_gpu: bool, half: bool) -> None:
    dtype = HALF if half else torch.float32
    side = Tensor((8, 64), dtype, on_gpu, None if on_gpu else 0)
    out = Tensor((8, 64), dtype, on_gpu, None if on_gpu else 4096)
    loaded = one(mlp_engine(half=half), side, out)
    for _ in range(4):
        x = torch.randn(8, 64, dtype=dtype, device="cuda" if on_gpu else "cpu")
        (y,) = loaded.run(x)
        assert y.device == x.device
        close(y, expected(x.cuda()).to(x.device))


@pytest.mark.parametrize("graphs", [False, True])
def test_shapes_that_change(graphs: bool) -> None:
    tensor = Tensor((8, 64), bounded=True)
    loaded = one(mlp_engine((-1, 64)), tensor, tensor, cuda_graphs=graphs)
    for rows in (4, 1, 8, 8, 8, 3, 3, 3, 8, 8, 1, 1, 1, 8, 3):
        x = torch.randn(rows, 64, device="cuda")
        close(loaded.run(x)[0], expected(x))
    with pytest.raises(ValueError, match="at most"):
        loaded.run(torch.randn(9, 64, device="cuda"))


@pytest.mark.parametrize("offset", [0, 1, 4, 8])
@pytest.mark.parametrize("half", [True, False])
def test_a_misaligned_input(offset: int, half: bool) -> None:
    """TensorRT's kernels fault on it, or read something else."""
    dtype = HALF if half else torch.float32
    tensor = Tensor((8, 64), dtype)
    x = torch.randn(8 * 64 + offset, device="cuda").to(dtype)[offset:].view(8, 64)
    close(one(mlp_engine(half=half), tensor, tensor).run(x)[0], expected(x))
    torch.cuda.synchronize()


@pytest.mark.parametrize("at", [0, 2, 8, 32])
def test_misaligned_planned_memory(at: int) -> None:
    tensors = [Tensor((8, 64), HALF, at=at), Tensor((8, 64), HALF, at=2048 + at)]
    x = torch.randn(8, 64, device="cuda").half()
    for _ in range(2):
        close(one(mlp_engine(half=True), *tensors).run(x)[0], expected(x))
    torch.cuda.synchronize()


@pytest.mark.parametrize("graphs", [False, True])
def test_calls_on_two_streams(graphs: bool) -> None:
    """They share the execution context's memory, and the arena between two engines."""
    plan = mlp_engine((512, 1024), 2048)
    x, y = Tensor((512, 1024)), Tensor((512, 1024))
    between = Tensor((512, 1024), at=0)
    pte = program(
        [x, between, y],
        [Engine(plan, {"x": 0}, {"y": 1}), Engine(plan, {"x": 1}, {"y": 2})],
        [0],
        [2],
    )
    method = load(pte, cuda_graphs=graphs).method()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    given = [torch.randn(512, 1024, device="cuda") for _ in range(2)]
    wanted = [method(each)[0].clone() for each in given]
    torch.cuda.synchronize()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    kept = []
    for index in range(200):
        with torch.cuda.stream(streams[index % 2]):
            kept.append((method(given[index % 2])[0], wanted[index % 2]))
    torch.cuda.synchronize()
    for result, right in kept:
        wrong += (result - right).abs().max() > 1e-4
    assert int(wrong) == 0


def test_host_memory_that_is_planned_twice() -> None:
    """Copies from and to planned memory have been made before the plan gives it to somebody else."""
    plan = mlp_engine()
    tensors = [Tensor((8, 64), on_gpu=False, at=at) for at in (0, 2048, 0, 2048)]
    calls = [Engine(plan, {"x": i}, {"y": i + 1}) for i in range(3)]
    method = load(program(tensors, calls, [0], [3])).method()
    for _ in range(20):
        x = torch.randn(8, 64)
        torch.cuda._sleep(1_000_000)
        (y,) = method(x)
        close(y, expected(expected(expected(x))))


@pytest.mark.parametrize("at", [0, None])
def test_a_host_input_may_be_written_again_at_once(at: int | None) -> None:
    """Nobody waits for the GPU where the result stays there."""
    given = Tensor((8, 64), on_gpu=False, at=at)
    method = one(mlp_engine(), given, ROWS).method()
    buffer, results = torch.empty(8, 64), []
    for _ in range(20):
        torch.cuda._sleep(1_000_000)
        x = torch.randn(8, 64)
        results.append((x, method(buffer.copy_(x))[0]))
    for x, y in results:
        close(y, expected(x.cuda()))


@pytest.mark.parametrize("graphs", [False, True])
def test_a_result_that_another_engine_reads(graphs: bool) -> None:
    """The memory that one engine makes for it is where the other one looks for it."""
    plan = mlp_engine()
    calls = [Engine(plan, {"x": i}, {"y": i + 1}) for i in range(3)]
    pte = program([ROWS] * 4, calls, [0], [1, 3])
    method = load(pte, cuda_graphs=graphs).method()
    kept = []
    for _ in range(6):
        x = torch.randn(8, 64, device="cuda")
        kept.append((x, method(x)))
    for x, (first, last) in kept:
        close(first, expected(x))
        close(last, expected(expected(expected(x))))


def test_results_are_freed_with_their_tensors() -> None:
    method = one(mlp_engine()).method()
    x = torch.randn(8, 64, device="cuda")
    method(x)
    before = torch.cuda.memory_allocated()
    result = method(x)
    assert torch.cuda.memory_allocated() > before
    del result
    assert torch.cuda.memory_allocated() == before


def test_a_thread_that_has_called_nothing_of_cuda_s() -> None:
    method = one(mlp_engine()).method()
    x = torch.randn(8, 64, device="cuda")
    wanted = method(x)[0]
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as thread:
        close(thread.submit(method, x).result()[0], wanted)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (Tensor((8, 64)), Tensor((8, 64), HALF), r"y is torch.float32, and the program has it as torch.float16"),
        (Tensor((8, 64), torch.int32), Tensor((8, 64)), r"x is torch.float32, and the program has it as torch.int32"),
        (Tensor((4, 64)), Tensor((8, 64)), r"x has shape \[8, 64\], and the program has it as \[4, 64\]"),
        (Tensor((8, 64)), Tensor((8, 8)), r"y has shape \[8, 64\], and the program has it as \[8, 8\]"),
        (Tensor((512,)), Tensor((8, 64)), r"x has shape \[8, 64\], and the program has it as \[512\]"),
    ],
)  # fmt: skip
def test_a_program_that_is_not_the_engine_s(x: Tensor, y: Tensor, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        one(mlp_engine(), x, y).method()


def test_an_output_as_an_input() -> None:
    tensors = [Tensor((8, 64)), Tensor((8, 64))]
    pte = program(tensors, [Engine(mlp_engine(), {"y": 0}, {"x": 1})], [0], [1])
    with pytest.raises(ProgramError, match="y is an output.*as an input"):
        load(pte).method()


@cache
def reshape_engine() -> bytes:
    """``y = x`` in the shape that ``s`` has for values, and ``t``, its number of elements by row."""

    def define(network: Any) -> None:
        x = network.add_input("x", trt.float32, (-1,))
        s = network.add_input("s", trt.int32, (2,))
        shuffle = network.add_shuffle(x)
        shuffle.set_input(1, s)
        y = network.add_activation(shuffle.get_output(0), trt.ActivationType.RELU)
        y.get_output(0).name = "y"
        network.mark_output(y.get_output(0))
        shape = network.add_shape(y.get_output(0)).get_output(0)
        shape.name = "t"
        network.mark_output_for_shapes(shape)

    return engine(
        define, {"x": ((1,), (12,), (24,))}, {"s": ((1, 1), (3, 4), (24, 24))}
    )


def reshaping(on_gpu: bool) -> Any:
    tensors = [
        Tensor((24,), bounded=True),
        Tensor((2,), torch.int32, on_gpu),
        Tensor((24, 24), bounded=True),
        Tensor((2,), torch.int32, on_gpu),
    ]
    calls = [Engine(reshape_engine(), {"x": 0, "s": 1}, {"y": 2, "t": 3})]
    return load(program(tensors, calls, [0, 1], [2, 3]))


@pytest.mark.parametrize("on_gpu", [False, True])
def test_shape_tensors_are_the_host_s(on_gpu: bool) -> None:
    loaded = reshaping(on_gpu)
    for rows, columns in ((3, 4), (2, 6), (2, 6), (6, 4)):
        x = torch.randn(rows * columns, device="cuda")
        s = torch.tensor([rows, columns], dtype=torch.int32)
        y, t = loaded.run(x, s.cuda() if on_gpu else s)
        assert torch.equal(y, x.relu().view(rows, columns))
        assert t.tolist() == [rows, columns] and t.is_cuda == on_gpu
    assert loaded.stats().staged == {}


def test_values_that_make_no_shape() -> None:
    loaded = reshaping(False)
    x = torch.randn(12, device="cuda")
    with pytest.raises(
        InstructionError, match=r"TensorRTBackend.*(can't make|failed|not built)"
    ) as found:
        loaded.run(x, torch.tensor([5, 7], dtype=torch.int32))
    assert "__len__" not in str(found.value) and "no reason" not in str(found.value)
    s = torch.tensor([3, 4], dtype=torch.int32)
    assert torch.equal(loaded.run(x, s)[0], x.relu().view(3, 4))


def test_a_host_shape_tensor_does_not_wait_for_the_gpu() -> None:
    """Its output of shapes is left out: whoever wants that on the host waits for it."""

    def define(network: Any) -> None:
        shuffle = network.add_shuffle(network.add_input("x", trt.float32, (-1,)))
        shuffle.set_input(1, network.add_input("s", trt.int32, (2,)))
        y = network.add_activation(shuffle.get_output(0), trt.ActivationType.RELU)
        y.get_output(0).name = "y"
        network.mark_output(y.get_output(0))

    plan = engine(
        define, {"x": ((1,), (12,), (24,))}, {"s": ((1, 1), (3, 4), (24, 24))}
    )
    tensors = [
        Tensor((24,), bounded=True),
        Tensor((2,), torch.int32, on_gpu=False),
        Tensor((24, 24), bounded=True),
    ]
    loaded = load(
        program(tensors, [Engine(plan, {"x": 0, "s": 1}, {"y": 2})], [0, 1], [2])
    )
    x, s = torch.randn(12, device="cuda"), torch.tensor([3, 4], dtype=torch.int32)
    loaded.run(x, s)
    torch.cuda.synchronize()
    torch.cuda._sleep(400_000_000)  # some 0.2 s
    start = time.perf_counter()
    (y,) = loaded.run(x, s)
    enqueued = time.perf_counter() - start
    torch.cuda.synchronize()
    waited = time.perf_counter() - start
    assert torch.equal(y, x.relu().view(3, 4))
    assert enqueued < 0.05 < waited, (enqueued, waited)
    assert loaded.stats().staged == {}


def test_a_graph_keeps_up_with_addresses() -> None:
    method = one(mlp_engine(), cuda_graphs=True).method()
    results = []
    for _ in range(6):
        x = torch.randn(8, 64, device="cuda")
        results.append((x, method(x)[0]))
    for x, y in results:
        close(y, expected(x))


def test_a_host_input_is_no_part_of_a_graph(caplog: Any = None) -> None:
    method = one(mlp_engine(), cuda_graphs=True).method()
    for device in ("cpu", "cuda", "cuda", "cuda", "cpu", "cuda"):
        x = torch.randn(8, 64, device=device)
        close(method(x)[0].cuda(), expected(x.cuda()))


def main() -> None:
    """Run every test, with all of its parameters."""
    failed = 0
    for name, test in [*globals().items()]:
        if not name.startswith("test_"):
            continue
        calls: list[dict[str, Any]] = [{}]
        for mark in getattr(test, "pytestmark", []):
            names, rows = mark.args
            if isinstance(names, str):
                names, rows = [names], [(row,) for row in rows]
            named = [dict(zip(names, row, strict=True)) for row in rows]
            calls = [{**call, **more} for call in calls for more in named]
        for call in calls:
            try:
                test(**call)
            except BaseException:
                failed += 1
                print(f"FAILED {name} {call}")
                traceback.print_exc()
        print(name, len(calls), flush=True)
    print(
        f"{torch.cuda.get_device_name()}, TensorRT {trt.__version__}: {failed} failed"
    )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
