"""CUDA delegates behind other partitioners', checked against eager.

A model whose routed operator, a look-up by computed indices, splits it into several partitions is
lowered with the real ``CudaBackend``: alone, after XNNPACK, and after TensorRT (emulated engines).
With or without a GPU the whole program runs; on a GPU each CUDA delegate's library is also loaded
with its weights by itself, run on what reaches it in the program, and compared with the same
operators in eager mode there.

    python tests/gpu/test_cuda_delegates.py
    python tests/gpu/test_cuda_delegates.py make FOLDER
    PYTHONPATH=. python tests/gpu/test_cuda_delegates.py run FOLDER

prints that comparison as a table; writes the programs, on any machine; runs them on one with a GPU.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import importlib.util
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Sequence

import pytest
import torch
from executorch.exir import EdgeProgramManager, to_edge_transform_and_lower
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import export
from torch.export.passes import move_to_device_pass
from torch.nn.functional import gelu
from torch.testing._comparison import default_tolerances
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = "cuda:0"

needs_a_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="libraries run on a CUDA device"
)
needs_compilers = pytest.mark.skipif(
    not (importlib.util.find_spec("triton") and shutil.which("g++")),
    reason="CUDA delegates are compiled by Triton and g++: pip install torchtrt-executorch[cuda]",
)
pytestmark = [pytest.mark.gpu, needs_compilers]


class Routed(torch.nn.Module):
    """Float tensors (batch, width) to the same shape, through two look-ups by computed rows."""

    def __init__(self, width: int = 64, rows: int = 128) -> None:
        super().__init__()
        self.first_row = torch.nn.Linear(width, rows)
        self.second_row = torch.nn.Linear(width, rows)
        self.head = torch.nn.Linear(width, width)
        self.first = torch.nn.Parameter(torch.randn(rows, width))
        self.second = torch.nn.Parameter(torch.randn(rows, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + gelu(self.first[self.first_row(x).argmax(-1)])
        x = x + gelu(self.second[self.second_row(torch.relu(x)).argmax(-1)])
        return self.head(torch.relu(x))


Lower = Callable[[torch.nn.Module, tuple[Any, ...], Partitioner], EdgeProgramManager]


def lower(
    module: torch.nn.Module, inputs: tuple[Any, ...], *partitioners: Partitioner
) -> EdgeProgramManager:
    program = export(module, inputs)
    return to_edge_transform_and_lower(program, partitioner=[*partitioners])


def lower_after_xnnpack(
    module: torch.nn.Module, inputs: tuple[Any, ...], cuda: Partitioner
) -> EdgeProgramManager:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )

    return lower(module, inputs, XnnpackPartitioner(), cuda)


def lower_after_tensorrt(
    module: torch.nn.Module, inputs: tuple[Any, ...], cuda: Partitioner
) -> EdgeProgramManager:
    import torch_tensorrt

    from torchtrt_executorch import emulated_engines

    if torch.cuda.is_available():
        # Torch-TensorRT traces on the GPU, and takes it that the model is there.
        module = copy.deepcopy(module).to(DEVICE)
        inputs = tuple(value.to(DEVICE) for value in inputs)
    with emulated_engines():
        compiled = torch_tensorrt.compile(
            module,
            ir="dynamo",
            arg_inputs=inputs,
            target_executorch=True,
            min_block_size=1,
            torch_executed_ops={torch.ops.aten.gelu.default},
        )
        return torch_tensorrt.executorch.export(
            compiled, arg_inputs=inputs, partitioners=[cuda]
        )


@dataclass(frozen=True)
class Case:
    """One program. ``partitions`` is the number of CUDA delegates that it must have."""

    name: str
    lower: Lower
    dtype: torch.dtype
    partitions: int

    def __str__(self) -> str:
        return f"{self.name}, {str(self.dtype).removeprefix('torch.')}"

    def build(self) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
        """Return the module and its inputs, the same on every machine."""
        torch.manual_seed(0)
        module = Routed().to(self.dtype).eval()
        return module, (torch.randn(8, 64, dtype=self.dtype),)

    def lowered(self) -> EdgeProgramManager:
        """Return the program, with the CUDA partitioner at its place in the list."""
        from executorch.backends.cuda.cuda_backend import CudaBackend
        from executorch.backends.cuda.cuda_partitioner import CudaPartitioner

        spec = CudaBackend.generate_method_name_compile_spec("forward")
        with torch.no_grad():
            return self.lower(*self.build(), CudaPartitioner([spec]))


CASES = (
    Case("alone", lower, torch.float32, 1),
    Case("after XNNPACK", lower_after_xnnpack, torch.float32, 2),
    Case("after TensorRT", lower_after_tensorrt, torch.float32, 2),
    Case("after TensorRT", lower_after_tensorrt, torch.float16, 2),
)


@dataclass(frozen=True)
class Comparison:
    """One CUDA delegate's library against eager. Sizes in bytes, errors absolute."""

    operators: int
    library: int
    weights: int
    error: float
    largest: float


class CompareLibraries(torch.fx.Interpreter):
    """Runs an edge program, CUDA delegates from their libraries, and compares these with eager."""

    def __init__(self, graph_module: torch.fx.GraphModule) -> None:
        super().__init__(graph_module)
        self.comparisons: list[Comparison] = []

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run ``n``; inputs and what delegates return go where the program has them."""
        result = super().run_node(n)
        if n.op != "placeholder" and n.target is not executorch_call_delegate:
            return result
        device = _device_of(n.meta["val"])
        return tree_map_only(torch.Tensor, lambda t: t.to(device), result)

    def call_function(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if target is not executorch_call_delegate:
            return super().call_function(target, args, kwargs)
        delegate, *inputs = args
        if delegate.backend_id != "CudaBackend":
            return delegate.original_module.module()(*inputs)
        inputs = [value.to(DEVICE) for value in inputs]
        program = move_to_device_pass(copy.deepcopy(delegate.original_module), DEVICE)
        expected = list(program.module()(*inputs))
        library, weights = blobs(delegate)
        outputs = run_library(library, weights, inputs)
        assert_close(outputs, expected)
        differences = [
            (output.double() - reference.double()).abs().max().item()
            for output, reference in zip(outputs, expected, strict=True)
        ]
        self.comparisons.append(
            Comparison(
                operators=sum(n.op == "call_function" for n in program.graph.nodes),
                library=len(library),
                weights=len(weights),
                error=max(differences),
                largest=max(reference.abs().max().item() for reference in expected),
            )
        )
        return outputs


def _device_of(value: Any) -> torch.device:
    """Return the device of the first tensor in a node's ``val``."""
    first, *_ = tree_leaves(value)
    return first.device


def assert_close(
    outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> None:
    """Compare by torch's tolerance for the dtype, relative to a tensor's largest value.

    Sums that cancel leave small values with the error of large ones.
    """
    assert len(outputs) == len(expected)
    for output, reference in zip(outputs, expected, strict=True):
        rtol, atol = default_tolerances(reference)
        largest = reference.abs().max().item()
        torch.testing.assert_close(
            output, reference, rtol=rtol, atol=max(atol, rtol * largest)
        )


def blobs(delegate: LoweredBackendModule) -> tuple[bytes, bytes]:
    """Return the library and the weights that the delegate's payload names, one key per line."""
    store = delegate.named_data_store_output
    entries = dict(store.pte_data)
    for external in store.external_data.values():
        entries.update(external)
    keys = delegate.processed_bytes.decode().split("\n")
    library, weights = (store.buffers[entries[key].buffer_index] for key in keys)
    return library, weights


def run_library(
    library: bytes, weights: bytes, inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Run an AOTInductor library on tensors on the GPU. It isn't linked against torch."""
    lib = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    ctypes.CDLL(str(lib), mode=ctypes.RTLD_GLOBAL)
    with tempfile.TemporaryDirectory() as folder:
        so, blob = Path(folder, "model.wrapper.so"), Path(folder, "weights.blob")
        so.write_bytes(library)
        blob.write_bytes(weights)
        runner = torch._C._aoti.AOTIModelContainerRunnerCuda(str(so), 1, DEVICE, folder)
        if weights:  # without them it reads memory that nobody allocated
            runner.update_constant_buffer_from_blob(str(blob))
        return runner.run(list(inputs))


def compare(case: Case) -> list[Comparison]:
    """Lower ``case``, compare its CUDA delegates and the whole program with eager, emit it.

    Raises:
        AssertionError: Something differs by more than the dtype's tolerance.
    """
    with torch.no_grad():
        module, inputs = case.build()
        expected = module(*inputs)
        edge = case.lowered()
        program = edge.exported_program()
        constants = {**program.state_dict, **program.constants}
        targets = (spec.target for spec in program.graph_signature.input_specs)
        held = [constants[each] for each in targets if each is not None]
        interpreter = CompareLibraries(program.graph_module)
        (output,) = interpreter.run(*held, *inputs)
    assert_close([output.cpu()], [expected])
    assert edge.to_executorch().buffer[4:8] == b"ET12"
    return interpreter.comparisons


def make(folder: Path, case: Case) -> None:
    """Write the program of a case: a ``.pte`` and its ``.ptd``."""
    folder.mkdir(parents=True, exist_ok=True)
    index = CASES.index(case)
    built = case.lowered().to_executorch()
    (folder / f"{index}.pte").write_bytes(bytes(built.buffer))
    (weights,) = built._tensor_data.values()
    (folder / f"{index}.ptd").write_bytes(bytes(weights))


def run(folder: Path, case: Case) -> tuple[float, set[str]]:
    """Run one of the programs that :func:`make` wrote, and compare it with eager.

    Returns:
        The largest difference, and the CUDA delegates that stand-ins computed for.

    Raises:
        AssertionError: It is more than the dtype's tolerance, or there aren't as many delegates.
    """
    from torchtrt_executorch import runtime

    index = CASES.index(case)
    data = [folder / f"{index}.ptd"]
    program = runtime.load(folder / f"{index}.pte", data, emulated_engines=True)
    module, inputs = case.build()
    with torch.no_grad():
        (output,) = program.run(*inputs)
        expected = module(*inputs)
    assert_close([output.cpu()], [expected])
    stats = program.stats()
    cuda = {name for name in stats.delegates if "CudaBackend" in name}
    assert len(cuda) == case.partitions
    return (output.cpu() - expected).abs().max().item(), cuda & stats.stand_ins


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    each: Case = request.param
    # Where it isn't installed at all, tests/without_torch_tensorrt.py says why.
    if each.lower is lower_after_tensorrt and importlib.util.find_spec(
        "torch_tensorrt"
    ):
        try:
            import torch_tensorrt  # noqa: F401
        except Exception as error:  # it raises Exception itself
            pytest.skip(f"Torch-TensorRT can't be imported here: {error}")
    return each


def test_the_program_reproduces_eager(tmp_path: Path, case: Case) -> None:
    make(tmp_path, case)
    _, stand_ins = run(tmp_path, case)
    assert len(stand_ins) == (0 if torch.cuda.is_available() else case.partitions)


@needs_a_gpu
def test_each_library_reproduces_eager(case: Case) -> None:
    assert len(compare(case)) == case.partitions


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", nargs="?", choices=("make", "run"))
    parser.add_argument("folder", nargs="?", type=Path)
    arguments = parser.parse_args()
    if arguments.command is None:
        show()
    elif arguments.command == "make":
        for case in CASES:
            make(arguments.folder, case)
    else:
        failed = False
        for case in CASES:
            try:
                difference, stand_ins = run(arguments.folder, case)
                how = "stand-ins" if stand_ins else "libraries"
                print(f"{case}: {case.partitions} {how}, {difference:.2g} off eager")
            except Exception as error:
                failed = True
                print(f"{case}: {type(error).__name__}: {error}")
        sys.exit(failed)


def show() -> None:
    """Print the comparison of every case.

    Raises:
        SystemExit: There is no CUDA device, or a case failed; the others are printed.
    """
    from executorch.version import __version__
    from rich.console import Console
    from rich.table import Table

    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: the CUDA backend compiles and runs on one")
    gpu = torch.cuda.get_device_name(DEVICE)
    table = Table(
        title=f"CUDA delegates against eager on {gpu}, torch {torch.__version__}, "
        f"executorch {__version__}"
    )
    headings = ("program", "dtype", "delegate", "operators", "library KiB")
    for heading in (*headings, "weights KiB", "largest value", "largest error"):
        table.add_column(heading, justify="right")
    failed = []
    for case in CASES:
        try:
            results = compare(case)
        except (Exception, pytest.skip.Exception) as error:
            failed.append(f"{case.name}, {case.dtype}: {error!r}")
            continue
        for index, result in enumerate(results):
            table.add_row(
                case.name,
                str(case.dtype).removeprefix("torch."),
                f"{index + 1} of {len(results)}",
                str(result.operators),
                f"{result.library / 1024:.0f}",
                f"{result.weights / 1024:.0f}",
                f"{result.largest:.3g}",
                f"{result.error:.2g}",
            )
    Console(width=120).print(table)
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()
