"""CUDA delegates on a real GPU, in programs that are put together by hand.

What exporters write for a GPU's runtime is in ``test_runtime_cuda.py``; here are streams, shared state,
labels without device memory, and CUDA graphs between jumps.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

sys.path.insert(0, str(Path(__file__).parent))
from engine_programs import (  # type: ignore[import-not-found]  # noqa: E402
    JumpUnless,
    Kernel,
    Library,
    Move,
    Plan,
    Tensor,
    methods,
    program,
)
from middle import SHAPE, Middle, read  # type: ignore[import-not-found]  # noqa: E402

from torchtrt_executorch.runtime import load, register_kernel  # noqa: E402
from torchtrt_executorch.runtime.calling import StreamOrder  # noqa: E402
from torchtrt_executorch.runtime.graphs import Segment  # noqa: E402

NBYTES = 8 * 64 * 4
GIVEN = Tensor(SHAPE)
WAITED, COPIED = "test::waits.out", "test::copies.out"


@pytest.fixture(scope="module")
def library(tmp_path_factory: Any) -> tuple[bytes, bytes]:
    files: tuple[bytes, bytes] = read(tmp_path_factory.mktemp("middle"))
    return files


@pytest.fixture(scope="module")
def middle() -> torch.nn.Module:
    return Middle().cuda().eval().requires_grad_(False)


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    """One that has the stream wait, and leaves ``out`` as it is; one that copies."""
    register_kernel(WAITED, lambda out: torch.cuda._sleep(2_000_000))
    register_kernel(COPIED, lambda source, out: out.copy_(source))
    yield
    register_kernel(WAITED, None)
    register_kernel(COPIED, None)


def close(result: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(result.cpu(), wanted.cpu(), rtol=1e-4, atol=1e-4)


def slow_twice(files: tuple[bytes, bytes]) -> Any:
    """``middle(middle(x))`` with planned memory in between, and time to overwrite it."""
    calls = [
        Library(*files, [0, 1]),
        Kernel(WAITED, [1, 1]),
        Library(*files, [1, 2]),
    ]
    between = Tensor(SHAPE, at=0)
    return load(program([GIVEN, between, GIVEN], calls, [0], [2])).method()


def on_two_streams(
    calls: int, *methods: Callable[[torch.Tensor], Any]
) -> list[tuple[torch.Tensor, Any]]:
    """Inputs and results of calls on one stream and another by turns, and of ``methods`` by turns."""
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    results = []
    torch.cuda.synchronize()
    for index in range(calls):
        with torch.cuda.stream(streams[index % 2]):
            x = torch.randn(SHAPE, device="cuda")
            results.append((x, methods[index % len(methods)](x)))
    torch.cuda.synchronize()
    return results


def wrong_on_two_streams(method: Any, middle: torch.nn.Module) -> int:
    return sum(
        not torch.allclose(y, middle(middle(x)), rtol=1e-4, atol=1e-4)
        for x, (y,) in on_two_streams(40, method)
    )


def test_calls_on_two_streams(
    library: tuple[bytes, bytes],
    middle: torch.nn.Module,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = slow_twice(library)
    assert wrong_on_two_streams(method, middle) == 0
    monkeypatch.setattr(StreamOrder, "begin", lambda *_: False)
    assert wrong_on_two_streams(method, middle) > 0, "nothing is tested"


def test_clones_on_two_streams(
    library: tuple[bytes, bytes], middle: torch.nn.Module
) -> None:
    """They wait for nobody, and needn't."""
    method = slow_twice(library)
    for x, (y,) in on_two_streams(20, method, method.clone()):
        close(y, middle(middle(x)))


def test_methods_that_share_state_in_two_threads(
    library: tuple[bytes, bytes], middle: torch.nn.Module
) -> None:
    """Each on a stream of its own: the state is the one that all steps together make."""
    tensors = [Tensor(SHAPE, at=0), Tensor(SHAPE, on_gpu=False, at=0)]
    calls = [
        Kernel(WAITED, [0, 0]),  # writes it, for all that the file says
        Library(*library, [0, 1]),
        Kernel(COPIED, [1, 0, 0]),
    ]
    plan = Plan(tensors, calls, [], [0], device_memory=False)
    loaded = load(methods({"one": plan, "other": plan}))
    seen: list[torch.Tensor] = []

    def steps(name: str) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(10):
                seen.append(loaded.method(name)()[0])

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(steps, ("one", "other"))] == [None] * 2
    state, wanted = torch.zeros(SHAPE, device="cuda"), []
    for _ in range(20):
        state = middle(state)
        wanted.append(state)
    assert len(seen) == 20
    close(loaded.method("one")()[0], middle(state))
    for each in seen:  # each step was made, and by one of the two
        assert any(torch.allclose(each, w.cpu(), atol=1e-4) for w in wanted)


def test_state_that_changes_places_on_two_streams(
    library: tuple[bytes, bytes], middle: torch.nn.Module
) -> None:
    method = load(stateful(library)).method()
    results = on_two_streams(20, lambda x: method(x, torch.tensor([True])))
    state = torch.zeros(SHAPE, device="cuda")
    for x, (new, z) in results:
        state = middle(state)
        close(new, state)
        close(z, middle(middle(x)))


def test_a_host_kernel_between_without_device_memory(
    library: tuple[bytes, bytes], middle: torch.nn.Module
) -> None:
    """Labels move nothing that is planned on the host: as it is without a GPU."""
    tensors = [Tensor(SHAPE, at=at * NBYTES) for at in range(4)]
    calls = [
        Library(*library, [0, 1]),
        Kernel("aten::relu.out", [1, 2, 2]),
        Library(*library, [2, 3]),
    ]
    pte = methods({"forward": Plan(tensors, calls, [0], [3], device_memory=False)})
    loaded = load(pte)
    for _ in range(3):
        x = torch.randn(SHAPE)
        (y,) = loaded.run(x)
        assert not y.is_cuda
        close(y, middle(middle(x.cuda()).relu()))
    assert loaded.stats().copies == {} and len(loaded.stats().staged) == 2


def stateful(files: tuple[bytes, bytes]) -> bytes:
    """``(state, x, more) -> state', z``: ``state' = middle(state)``, ``z = middle(x)``, or twice that.

    The state and its next value change roles through an empty value, as the device pass has it.
    """
    state, following, empty, x, y, z, more, twice = range(8)
    tensors = [
        Tensor(SHAPE, at=0),
        Tensor(SHAPE, at=NBYTES),
        None,
        GIVEN,
        Tensor(SHAPE, at=2 * NBYTES),
        Tensor(SHAPE, at=3 * NBYTES),
        Tensor((1,), torch.bool, on_gpu=False, at=0),
        Tensor(SHAPE, at=4 * NBYTES),
    ]
    calls = [
        Kernel(WAITED, [state, state]),  # writes it, for all that the file says
        Library(*files, [state, following]),
        Library(*files, [x, y]),
        Move(state, empty),
        Move(following, state),
        Move(empty, following),
        Kernel(COPIED, [y, z, z]),
        JumpUnless(more, 10),
        Library(*files, [y, twice]),
        Kernel(COPIED, [twice, z, z]),
        Kernel(WAITED, [z, z]),
    ]
    return bytes(program(tensors, calls, [x, more], [state, z]))


def test_graphs_between_jumps_and_state_that_changes_places(
    library: tuple[bytes, bytes], middle: torch.nn.Module
) -> None:
    method = load(stateful(library), cuda_graphs=True).method()
    state = torch.zeros(SHAPE, device="cuda")
    kept = []
    for index in range(24):
        more = index % 3 != 1
        x = torch.randn(SHAPE, device="cuda")
        results = method(x, torch.tensor([more]))
        state = middle(state)
        kept.append((results, state, middle(middle(x)) if more else middle(x)))
    for (new, z), right, wanted in kept:
        close(new, right)
        close(z, wanted)
    segments = {start: getattr(run, "__self__", None) for start, run in method._steps}
    found = ((n, each) for n, each in segments.items() if isinstance(each, Segment))
    captured = {start: len(segment._graphs) for start, segment in found}
    # The state is at one of two places; behind the jump is nothing that moves.
    assert captured == {1: 2, 8: 1}


def test_graphs_of_clones_that_are_gone_keep_no_host_memory(
    library: tuple[bytes, bytes],
) -> None:
    """PyTorch keeps a pool of host memory for each, 47 KiB, until it is told to empty its cache."""
    x = torch.randn(SHAPE, device="cuda")
    one = program([GIVEN, GIVEN], [Library(*library, [0, 1])], [0], [1])
    method = load(one, cuda_graphs=True).method()
    page, seen = os.sysconf("SC_PAGE_SIZE"), []
    for _ in range(3):
        for _ in range(200):
            clone = method.clone()
            for _ in range(3):
                clone(x)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        pages = Path("/proc/self/statm").read_text().split()[1]
        seen.append(int(pages) * page)
    # 3 to 18 KiB each on an H100, by allocators' chance.
    assert seen[2] - seen[1] < 200 * 32768
