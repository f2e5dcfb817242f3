"""What the backend can't compile is found before it is claimed; nothing is compiled here."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.cuda import _mul_sum_decompositions
from executorch.backends.cuda.support import dry_run
from executorch.backends.cuda.triton import _kernel_support
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    to_edge,
    to_edge_transform_and_lower,
)
from executorch.exir.backend.partitioner import Partitioner
from torch import nn
from torch.export import export
from torch.fx.experimental.proxy_tensor import make_fx
from torch.torch_version import TorchVersion

from torchtrt_executorch import report

from ....lowering import BaseModel, Function, cuda_partitioner
from ..conftest import needs_compilers

pytestmark = [needs_compilers, pytest.mark.builds]

F = nn.functional
X = torch.linspace(-1, 1, 128).reshape(8, 16)
HEADS = torch.linspace(-1, 1, 256).reshape(1, 2, 8, 16)


class _Stopped(Partitioner):
    """``CudaPartitioner``, whose partitions nobody lowers."""

    def __init__(self) -> None:
        super().__init__()
        self.cuda = cuda_partitioner()
        self.taken: set[str] = set()

    def ops_to_not_decompose(self, ep: Any) -> Any:
        return self.cuda.ops_to_not_decompose(ep)

    def partition(self, exported_program: Any) -> Any:
        result = self.cuda.partition(exported_program)
        for module in exported_program.graph_module.modules():
            for node in module.graph.nodes if hasattr(module, "graph") else ():
                if node.meta.pop("delegation_tag", None) and node.op == "call_function":
                    self.taken.add(str(getattr(node.target, "_op", node.target)))
        result.partition_tags = {}
        return result


def partitioned(
    function: Callable[..., Any] | nn.Module, *inputs: torch.Tensor, behind: Any = ()
) -> tuple[set[str], EdgeProgramManager]:
    """Return what ``CudaPartitioner`` takes of a program, and the program."""
    module = function if isinstance(function, nn.Module) else Function(function)
    partitioner = _Stopped()
    edge = to_edge_transform_and_lower(
        export(module.eval(), inputs),
        partitioner=[partitioner, *behind],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),  # complex numbers
    )
    return partitioner.taken, edge


def on_host(edge: EdgeProgramManager) -> dict[str, str]:
    """Return the reasons for operators that the backend left, by their names."""
    operators = report(edge).methods["forward"].operators
    ours = (each for each in operators if each.reason.startswith("CudaBackend: "))
    return {each.name: each.reason for each in ours}


@torch.library.custom_op("cuda_operators_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


LEFT = {
    "a product of integers": (
        lambda x: (x @ x.T).float().relu(),
        X.long(),
        "aten.mm.default",
        "no kernel for it in torch.int64",
    ),
    "the largest of integers": (
        lambda x: x.topk(3).values + 1,
        X.long(),
        "aten.topk.default",
        "no kernel for it",
    ),
    "integers by a number, towards zero": (
        lambda x: x.div(2, rounding_mode="trunc") + 1,
        X.long(),
        "aten.div.Tensor_mode",
        "returns torch.float32 for it, not torch.int64",
    ),
    "an operator of another library": (
        lambda x: torch.ops.cuda_operators_test.twice(x.relu()).relu(),
        X,
        "cuda_operators_test.twice.default",
        "cuda_operators_test::twice",
    ),
}


#: By the release of PyTorch whose Inductor compiles it.
COMPILED_FROM = {"integers by a number, towards zero": (2, 14)}


@pytest.mark.parametrize("case", LEFT)
def test_what_cannot_be_compiled_is_left_with_the_reason(case: str) -> None:
    function, x, name, reason = LEFT[case]
    taken, edge = partitioned(function, x)
    found = on_host(edge)
    if TorchVersion(torch.__version__) >= COMPILED_FROM.get(case, (9,)):
        assert not found and name in taken
        return
    assert list(found) == [name] and reason in found[name]
    assert taken and name not in taken


class Scaled(BaseModel, scale=lambda: nn.Parameter(torch.tensor(2.5))):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale.exp()).relu()


def test_a_parameter_of_no_dimension_is_a_number_while_it_can_be_read() -> None:
    taken, edge = partitioned(Scaled(), X)
    assert {"aten.exp.default", "aten.mul.Tensor"} <= taken and not on_host(edge)


def test_a_fourier_transform_is_left_and_what_is_done_with_it_is_not() -> None:
    def spectrum(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x.relu()).abs() * 2

    taken, edge = partitioned(spectrum, X)
    left = {"aten._fft_r2c.default", "aten.view_as_real_copy.default"}
    assert left == set(on_host(edge))
    assert {"aten.relu.default", "aten.mul.Tensor"} <= taken


TAKEN = {
    "distances": (lambda x: torch.cdist(x, x).relu(), X),
    "the pieces of a tensor": (lambda x: [p + 1 for p in x.split(5, -1)], X),
    "pieces that are returned": (lambda x: x.split(4), X),
    "the largest": (lambda x: tuple(x.topk(3)), X),
    "integers by a number, downwards": (lambda x: x // 2 + 1, X.long()),
    "a norm whose statistics nobody reads, which are in another type": (
        lambda x: F.batch_norm(x, x.new_zeros(2), x.new_ones(2)).relu(),
        HEADS.half(),
    ),
    "a product in float64": (lambda x: x.double() @ x.double().T + x.sum(), X),
    "a resize with antialiasing": (
        lambda x: F.interpolate(x, size=(5, 9), mode="bicubic", antialias=True),
        HEADS,
    ),
    "what is detached": (lambda x: torch.ops.aten.detach_copy(x.relu()) + 1, X),
    **{
        f"attention in {dtype}": (
            lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
            HEADS.to(dtype),
        )
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
    },
    "attention with a mask that Triton's kernel refuses": (
        lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=x @ x.mT),
        HEADS.bfloat16(),
    ),
}


@pytest.mark.parametrize("case", TAKEN)
def test_what_can_be_compiled_is_taken_whole(case: str) -> None:
    taken, edge = partitioned(*TAKEN[case])
    assert taken and not on_host(edge)


KERNELS = {
    "attention": (HEADS.bfloat16(), 1),
    "attention in float32": (HEADS, 0),
    "attention over heads too small for Triton": (HEADS[..., :8].bfloat16(), 0),
}


@pytest.mark.parametrize("case", KERNELS)
def test_a_triton_kernel_is_for_what_it_takes(case: str, caplog) -> None:
    x, count = KERNELS[case]
    pass_of = "executorch.backends.cuda.triton.replacement_pass"
    with caplog.at_level(logging.INFO, logger=pass_of):
        taken, _ = partitioned(lambda x: F.scaled_dot_product_attention(x, x, x), x)
    assert taken == {"aten.scaled_dot_product_attention.default"}
    said = {each.message for each in caplog.records if each.name == pass_of}
    assert said == {f"Replaced {count} nodes with Triton kernels"}


def test_attention_that_is_alike_is_tried_once(monkeypatch) -> None:
    tried: list[Any] = []
    functionalize = _kernel_support.dispatch_functionalize

    def noted(kernel: Any) -> Any:
        tried.append(kernel)
        return functionalize(kernel)

    monkeypatch.setattr(_kernel_support, "dispatch_functionalize", noted)

    def layers(*inputs: torch.Tensor) -> torch.Tensor:
        return sum(F.scaled_dot_product_attention(x, x, x).mean() for x in inputs)

    counts = []
    half = HEADS.bfloat16()
    for inputs in ([half], [half] * 3, [half, half[:, :1], half]):
        tried.clear()
        partitioned(layers, *(each.clone() for each in inputs))
        counts.append(len(tried))
    assert counts[0] == counts[1] > 0
    assert counts[2] == 2 * counts[0]


def test_the_partitioners_behind_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What can't be compiled, for whatever reason: of all that XNNPACK supports nothing is left."""
    why_not = dry_run.why_not

    def without_convolutions(nodes: Any, *more: Any) -> str:
        names = " ".join(str(node.target) for node in nodes)
        return "no kernel for it" if "conv" in names else why_not(nodes, *more)

    monkeypatch.setattr(dry_run, "why_not", without_convolutions)
    module = nn.Sequential(nn.Conv2d(4, 4, 2), nn.Softplus())
    taken, edge = partitioned(
        module, torch.ones(1, 4, 8, 8), behind=[XnnpackPartitioner()]
    )
    assert "aten.softplus.default" in taken
    operators = report(edge).methods["forward"].operators
    (left,) = (each for each in operators if "conv" in each.name)
    assert left.backend == "XnnpackBackend"
    assert "no kernel for it" in left.reason


def test_bfloat16_is_left_where_a_listed_gpu_has_none(monkeypatch) -> None:
    x = torch.ones(4, 8, dtype=torch.bfloat16)
    monkeypatch.setenv("TORCHTRT_GPU", "sm_75:8GiB,sm_90:80GiB")
    taken, edge = partitioned(torch.exp, x)
    assert not taken
    reason = "torch.bfloat16 takes a GPU of compute capability 8.0 or later"
    assert on_host(edge) == {"aten.exp.default": f"CudaBackend: {reason}"}
    monkeypatch.setenv("TORCHTRT_GPU", "sm_80:40GiB,sm_90:80GiB")
    assert partitioned(torch.exp, x)[0] == {"aten.exp.default"}


def test_operators_that_differ_in_nothing_are_tried_once(monkeypatch) -> None:
    tried: list[int] = []
    why_not = dry_run.why_not

    def counted(nodes: Any, *more: Any) -> str:
        tried.append(len(nodes))
        return why_not(nodes, *more)

    monkeypatch.setattr(dry_run, "why_not", counted)
    partitioned(nn.Sequential(*(nn.Linear(16, 16) for _ in range(20))), X)
    assert tried == [1]  # whole as it was exported, and the same in the edge dialect


def test_a_number_is_as_a_gpu_has_it() -> None:
    """A real tensor, beside inputs that are fake, which AOTAutograd takes as it does from an export."""
    from torch._functorch.aot_autograd import aot_export_module

    edge = to_edge(export(Function(lambda x: x / 0.7), (X,))).exported_program()
    (divided,) = (each for each in edge.graph.nodes if each.op == "call_function")
    program = dry_run.program_of([divided], {divided.args[1]: 0.7})
    assert [type(each) for each in program.constants.values()] == [torch.Tensor]
    inputs = [
        each.meta["val"]
        for each in program.graph.nodes
        if each.name in program.graph_signature.user_inputs
    ]
    with torch.no_grad():
        aot_export_module(program.module(), inputs, trace_joint=False)


def test_another_thread_compiles_on() -> None:
    from torch._inductor.codegen.cpp_wrapper_gpu import CppWrapperGpu

    class Wrapper:
        """What the original needs of a wrapper, before it fails for want of the rest."""

    reached: list[type[BaseException]] = []

    def compile_kernels() -> None:
        try:
            CppWrapperGpu.generate_and_run_autotune_block(Wrapper())  # type: ignore[arg-type]
        except Exception as error:
            reached.append(type(error))

    with dry_run.no_compilers():
        compile_kernels()
        other = threading.Thread(target=compile_kernels)
        other.start()
        other.join()
    assert reached[0] is dry_run.Stopped and reached[1] is not dry_run.Stopped


@pytest.mark.parametrize("window", [(2, 2), (7, 7)])
def test_of_a_large_sum_some_terms_are_tried(window: tuple[int, int]) -> None:
    """As many as have what is summed read from memory, as all have: the graph has the same operators."""
    shapes = torch.ones(1, 4, 9, 9), torch.ones(4, 1, *window)

    def terms() -> Counter[str]:
        def convolve(x: torch.Tensor, weight: torch.Tensor) -> Any:
            return _mul_sum_decompositions.convolution(
                x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 4
            )

        nodes = make_fx(convolve)(*shapes).graph.nodes
        return Counter(str(node.target) for node in nodes)

    whole = terms()
    with dry_run.no_compilers():
        tried = terms()
    product = str(torch.ops.aten.mul.Tensor)
    assert whole[product] == math.prod(window)
    assert tried[product] == min(math.prod(window), 5)
    assert whole.keys() == tried.keys() and terms() == whole


def test_what_nothing_traced_is_not_tried() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    added = graph.call_function(torch.ops.aten.add.Tensor, (x, x))
    assert dry_run.SupportCheck([]).unsupported([added], {}) == {}
