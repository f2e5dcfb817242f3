"""Quantized weights of CUDA delegates: what a program computes once they are kept so, and their bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.backends.cuda._edge_calls import DEQUANTIZE, is_call
from executorch.backends.cuda.quantized import pack_weights
from executorch.backends.cuda.quantized.pack_weights import pack_quantized_weights
from executorch.backends.cuda.tuning.tile_selection import Stopped, caused_by
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.exir import to_edge, to_edge_transform_and_lower
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._inductor.codecache import AotCodeCompiler
from torch._inductor.codegen.cpp_wrapper_gpu import CppWrapperGpu
from torch.utils import _pytree as pytree

from torchtrt_executorch import report, runtime
from torchtrt_executorch.cache import SWITCH

from ..conftest import delegates, needs_compilers, without_gpu

pytest.importorskip("torchao.quantization")

from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from torchao.quantization.quant_primitives import dequantize_affine

from .... import fresh
from ....lowering import BaseModel, cuda_partitioner, emit, load, lower
from .. import interpreted
from . import gemvs, neighbors, programs, strided_weights

pytestmark = needs_compilers


@pytest.fixture(scope="module")
def by_the_interpreter() -> list[Any]:
    """How far schemes and any rows by any weights are off, by Triton's interpreter."""
    return interpreted.run(programs, gemvs, strided_weights, neighbors)


def test_weights_as_they_are_kept_compute_what_torchao_does(
    by_the_interpreter: list[Any],
) -> None:
    """A row's products read each scheme's weights, and nothing else rounds."""
    found = {**by_the_interpreter[0]}
    for name, (_, launches, aligned) in programs.BESIDE.items():
        off, *how, left = found.pop(name)
        assert how == [launches, aligned], name
        assert (left == 0) == (launches > 0), name
        assert off < 2**-6, name
    assert len(found) == 2 * len(programs.SCHEMES) + len(programs.NEARLY)
    for name in programs.NEARLY:
        off, products = found.pop(name)
        assert off < 1e-6, name
        assert products == (name in ("turned", "large")), name
    for name, (off, products) in found.items():
        scheme, tokens = name.rsplit(", ", 1)
        if tokens == "1" and scheme not in ("odd groups", "int8, activations"):
            # The interpreter cuts bfloat16 off where a GPU rounds.
            assert products == 2, name
            assert off < 2**-6, name
        else:
            assert (products, off) == (0, 0), name


def test_a_row_by_any_weight_is_exact(by_the_interpreter: list[Any]) -> None:
    for *case, off in by_the_interpreter[1]:
        assert off < 1, case


def test_gemv_reads_views_of_any_layout(by_the_interpreter: list[Any]) -> None:
    """Weights that lie otherwise than the kernel indexes them are Inductor's, but for those that are packed."""
    found = by_the_interpreter[2]
    assert [layout for layout, *_ in found] == [*strided_weights.WEIGHTS]
    for layout, row, off, products in found:
        assert max(off) < 2**-6, (layout, row, off)
        dense = layout in ("contiguous", "rows of a buffer", "sizes 0, 1")
        if layout != "offset":  # which may begin between words
            assert products == (len(strided_weights.KINDS) if dense else 1), layout


def test_a_launch_computes_the_norm_before_and_the_gate_or_sum_behind(
    by_the_interpreter: list[Any],
) -> None:
    found = by_the_interpreter[3]
    assert {*found} == {*neighbors.CASES}
    for name, (off, *counts) in found.items():
        assert off < 2**-6, name
        assert tuple(counts) == neighbors.CASES[name][1], name


BYTES = (torch.bool, torch.uint8, torch.int8)


class OneWeight(nn.Module):
    """A row by a weight that is said to be of integers from ``least`` on, with a scale for each group."""

    def __init__(self, bits: int, group: int, least: int, kind: torch.dtype) -> None:
        super().__init__()
        values = torch.arange(4 * 64).view(4, 64) % (1 << (bits - 1))
        self.register_buffer("weight", values.to(kind))
        self.register_buffer("scale", torch.ones(4, 64 // group))
        self.limits = least, least + (1 << bits) - 1
        self.group, self.kind = group, kind

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        whole = dequantize_affine(
            self.weight, (1, self.group), self.scale, None, self.kind, *self.limits
        )
        return nn.functional.linear(row, whole)


def test_a_packed_weight_s_name_tells_its_bytes() -> None:
    """Methods share weights by name: one name has the same bytes, from whichever value on they are counted."""
    found: dict[str, set[bytes]] = {}
    forms = [
        (bits, group, least, kind)
        for bits in (2, 4)
        for group in (32, 64)
        for least, kind in ((-(1 << (bits - 1)), torch.int8), (0, torch.int8))
    ]
    for form in [*forms, (4, 32, 0, torch.uint8), (4, 32, -1, torch.int8)]:
        program = torch.export.export(OneWeight(*form), (torch.ones(1, 64),))
        edge = to_edge(program).exported_program()
        pack_quantized_weights(edge)
        for name, tensor in edge.state_dict.items():
            if name.startswith("weight."):
                found.setdefault(name, set()).add(tensor.numpy().tobytes())
    assert len(found) == len(forms) + 1
    assert {len(each) for each in found.values()} == {1}, found.keys()
    assert all(name.replace(".", "_").isidentifier() for name in found)


class Lookup(OneWeight):
    """Rows of a table of integers, with a scale for each group."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        whole = dequantize_affine(
            self.weight, (1, self.group), self.scale, None, self.kind, *self.limits
        )
        return nn.functional.embedding(tokens, whole)


@pytest.mark.parametrize("tokens", [0, 1, 3, "any"])
@pytest.mark.parametrize("model", [OneWeight, Lookup])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (torch.uint8, torch.uint8),
        (torch.int8, torch.int8),
        (torch.uint8, torch.uint1),
        (torch.uint8, torch.uint4),
    ],
    ids=str,
)
def test_integers_of_any_range_are_packed(
    model: type[OneWeight], tokens: Any, kind: torch.dtype, said: torch.dtype
) -> None:
    """Without an error behind the support check, which sees dequantized weights, and right where no kernel runs."""
    bits = int(str(said).rpartition("int")[2])
    least = -(1 << (bits - 1)) if kind == torch.int8 else 0
    module = model(bits, 32, least, kind)
    module.kind = said
    count = 4 if tokens == "any" else tokens
    x = torch.ones(count, 64) if model is OneWeight else torch.arange(count).view(1, -1)
    rows = {x.ndim - 1 if model is Lookup else 0: torch.export.Dim("n", min=2, max=64)}
    program = torch.export.export(
        module, (x,), dynamic_shapes=(rows,) if tokens == "any" else None
    )
    edge = to_edge(program).exported_program()
    pack_quantized_weights(edge)
    values = pytree.tree_leaves([n.meta.get("val") for n in edge.graph.nodes])
    types = {each.dtype for each in values if isinstance(each, torch.Tensor)}
    assert all(each.itemsize > 1 or each in BYTES for each in types)
    if model is Lookup or tokens != 1:
        torch.testing.assert_close(edge.module()(x), module(x))


class SeveralSchemes(nn.Module):
    """Layers beside one another, each in a scheme of its own."""

    def __init__(self) -> None:
        super().__init__()
        names = ("int8", "int4, 32", "float8")
        self.layers = nn.ModuleList(programs.quantized(name) for name in names)
        self.bits = sum(programs.SCHEMES[name][1] for name in names)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.cat([layers(tokens) for layers in self.layers])


@without_gpu
def test_a_delegate_has_the_bytes_that_the_bits_take() -> None:
    model, tokens = SeveralSchemes().eval(), torch.tensor([[5]])
    with torch.no_grad():
        wanted = model(tokens)
    program = torch.export.export(model, (tokens,))
    partitioner = cuda_partitioner(gpu="sm_90:80GiB")  # float8 is from 8.9 on
    edge = to_edge_transform_and_lower(program, partitioner=[partitioner])
    assert report(edge).methods["forward"].on_host() == []
    (delegate,) = delegates(edge)
    values = 64 * 256 + 256 * 32 + 32 * 16
    kept = values * model.bits // 8
    scales = sum(
        each.nbytes
        for name, each in program.state_dict.items()
        if not name.endswith("original0")
    )
    assert kept < len(delegate.weights) < 1.05 * (kept + scales)
    assert b"_gemv_kernel" in delegate.library
    (found,) = load(emit(edge)).run(tokens)
    torch.testing.assert_close(found, wanted, atol=1e-2, rtol=1e-2)


def up_to_the_compilers(model: nn.Module, *inputs: torch.Tensor) -> Any:
    """Lower a model to where a kernel or a library would be compiled. Return the program if none would be."""

    def stop(*args: Any, **kwargs: Any) -> None:
        raise Stopped

    partitioner = cuda_partitioner(gpu="sm_90:80GiB")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AotCodeCompiler, "compile", classmethod(stop))
        patch.setattr(CppWrapperGpu, "generate_and_run_autotune_block", stop)
        try:
            return lower(model, inputs, partitioner)
        except Exception as error:
            if caused_by(error, Stopped) is None:
                raise
    return None


@dataclass(frozen=True)
class Reading:
    """A quantized weight of (rows, columns), and what reads it for so many tokens.

    Attributes:
        weight: Its bits, and the integers that hold them; or the type that it is cast from.
        group: Values of a scale, 0 for a whole row.
        use: A linear, a matmul, a linear that is scaled behind, or a lookup of rows.
    """

    weight: Any
    size: tuple[int, int]
    group: int
    zero: torch.dtype | None
    dtype: torch.dtype
    use: str
    tokens: int

    def input(self) -> torch.Tensor:
        if self.use == "lookup":
            return torch.zeros(self.tokens, dtype=torch.int64)
        return torch.ones(self.tokens, self.size[1], dtype=self.dtype)


class Reader(nn.Module):
    def __init__(self, how: Reading) -> None:
        super().__init__()
        self.how, (rows, columns) = how, how.size
        held = how.weight[1] if isinstance(how.weight, tuple) else how.weight
        values = torch.arange(rows * columns).reshape(how.size) % 2
        groups = columns // how.group if how.group else 1
        self.register_buffer("weight", values.float().to(held))
        self.register_buffer("scale", torch.ones(rows, groups))
        zero = how.zero and torch.ones(rows, groups, dtype=how.zero)
        self.register_buffer("zero", zero)

    def whole(self) -> torch.Tensor:
        how = self.how
        if not isinstance(how.weight, tuple):
            return self.weight.to(how.dtype) * self.scale[:, :1].to(how.dtype)
        bits, held = how.weight
        least = 0 if held == torch.uint8 else -(1 << (bits - 1))
        block = (1, how.group or how.size[1])
        given = self.scale, self.zero, held, least, least + (1 << bits) - 1
        return dequantize_affine(self.weight, block, *given, output_dtype=how.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how.use == "lookup":
            return nn.functional.embedding(x, self.whole())
        if self.how.use == "matmul":
            return x @ self.whole().t()
        if self.how.use == "scaled":
            result = nn.functional.linear(x, self.weight.to(x.dtype))
            return result * self.scale[:, 0].to(x.dtype)
        return nn.functional.linear(x, self.whole())


class Readers(nn.Module):
    """Several beside one another."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        super().__init__()
        self.each = nn.ModuleList(map(Reader, readings))

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        return [each(x) for each, x in zip(self.each, inputs, strict=True)]


WEIGHTS = [
    *((bits, torch.int8) for bits in (2, 4, 8)),
    *((bits, torch.uint8) for bits in (1, 4, 8)),
    *(torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2),
]
SIZES = [(16, 0), (0, 16), (1, 1), (16, 1), (1, 16), (5, 6), (3, 7), (16, 64)]
USES = ["linear", "matmul", "scaled", "lookup"]
DTYPES = [torch.bfloat16, torch.float32, torch.float16]


@st.composite
def readings(draw: Any) -> Reading:
    size = draw(st.sampled_from(SIZES))
    groups = [n for n in range(1, size[1] + 1) if size[1] % n == 0]
    of = (WEIGHTS, [size], [0, *groups], [None, torch.int8, torch.float32], DTYPES)
    return Reading(*(draw(st.sampled_from(each)) for each in (*of, USES, [0, 1, 3])))


#: Each weight, size and use, with odd groups and none.
SOME = [
    Reading(
        weight,
        (size := SIZES[index % len(SIZES)]),
        max((n for n in (1, 3, 7) if size[1] and size[1] % n == 0), default=0),
        (None, torch.int8)[index % 2],
        DTYPES[index % 3],
        USES[index % 4],
        (1, 3, 0)[(index // 2) % 3],
    )
    for index, weight in enumerate(WEIGHTS)
]


def test_what_is_claimed_of_quantized_weights_compiles() -> None:
    assert up_to_the_compilers(Readers(SOME), *(each.input() for each in SOME)) is None


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(readings(), min_size=8, max_size=8))
def test_whatever_is_claimed_of_quantized_weights_compiles(some: list[Reading]) -> None:
    up_to_the_compilers(Readers(some), *(each.input() for each in some))


@pytest.mark.parametrize(
    ("use", "broken", "left"),
    [
        # A linear that is left is decomposed.
        ("linear", ("aten.linear", "aten.mm"), "aten.mm.default"),
        ("lookup", ("aten.embedding",), "aten.embedding.default"),
        ("linear", DEQUANTIZE, "torchao.dequantize_affine.default"),
    ],
)
def test_what_a_quantized_weight_breaks_is_found_before_it_is_claimed(
    use: str,
    broken: tuple[str, ...],
    left: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: Any,
) -> None:
    """The check sees the graph that is compiled: an operator by itself has no weight that it could read."""
    rewrite = pack_weights.fuse_gemvs

    def fails(graph: Any, packed: Any, weights: Any) -> None:
        of_weights = {*packed}
        for node in graph.nodes:
            if not of_weights.isdisjoint(node.all_input_nodes):
                of_weights.add(node)
                if is_call(node, broken):
                    raise RuntimeError("broken here")
        rewrite(graph, packed, weights)

    monkeypatch.setattr(pack_weights, "fuse_gemvs", fails)
    monkeypatch.setenv(SWITCH, "0")  # which knows what can be compiled
    how = Reading((4, torch.int8), (16, 64), 32, None, torch.float32, use, 1)
    with caplog.at_level("WARNING", "executorch.backends.aoti"):
        program = up_to_the_compilers(Reader(how), how.input())
    said = [each.getMessage() for each in caplog.records if "left to" in each.msg]
    assert {each.partition(" ")[0] for each in said} == {left}
    assert all("broken here" in each and each.count("(node") == 1 for each in said)
    assert program is None  # the other one is compiled


class ScaledBehind(
    BaseModel,
    weight=lambda: torch.randint(-128, 128, (64, 32)).char(),
    scale=lambda: torch.rand(64).bfloat16() / 128,
):
    """A product by a weight in int8, and a scale for each of its rows behind it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype)) * self.scale


def test_several_rows_by_a_weight_that_is_scaled_behind() -> None:
    """Inductor takes the two for one operator, which has no kernel for a GPU that may be had."""
    model, x = ScaledBehind().eval(), torch.randn(2, 4, 32, dtype=torch.bfloat16)
    edge = lower(model, (x,), cuda_partitioner())
    assert report(edge).methods["forward"].on_host() == []
    (delegate,) = delegates(edge)
    assert len(delegate.weights) < 1.2 * (64 * 32 + 2 * 64)


class Dequantized(nn.Module):
    """A linear by a weight in int8, (16, ``columns``), with a scale for each row of it."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(16, columns, dtype=torch.int8))
        self.register_buffer("scale", torch.full((16, 1), 0.5))
        self.register_buffer("zero", torch.zeros(16, 1, dtype=torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = (1, self.weight.shape[1]), self.scale, self.zero, torch.int8
        return nn.functional.linear(x, dequantize_affine(self.weight, *given))


@pytest.mark.parametrize("rows", [1, 3])
def test_a_linear_of_no_columns(rows: int) -> None:
    model, x = Dequantized(0).eval(), torch.ones(rows, 0)
    edge = lower(model, (x,), cuda_partitioner())
    assert delegates(edge)
    (found,) = load(emit(edge)).run(x)
    assert torch.equal(found, torch.zeros(rows, 16))


@pytest.mark.slow
def test_the_guide_s_snippet_runs(tmp_path: Path) -> None:
    guide = Path(__file__).parents[3] / "docs" / "quantization.md"
    (code,) = re.findall(r"^```python\n(.*?)^```$", guide.read_text(), re.M | re.S)
    done = fresh.run(code, env=dict(os.environ), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (weights,) = tmp_path.glob("*.ptd")
    assert weights.stat().st_size < 0.53 * 512 * 512


@pytest.mark.slow
def test_what_pt2e_quantized_for_xnnpack_is_kept_so() -> None:
    """The configuration that TensorRT and XNNPACK take, of convolutions and linears."""
    from torchao.quantization.pt2e import quantize_pt2e as pt2e

    config = get_symmetric_quantization_config(is_per_channel=True)
    quantizer = XNNPACKQuantizer().set_global(config)
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 64, 3, padding=1), nn.Conv2d(64, 64, 3), nn.Linear(14, 8))
    model, x = nn.Sequential(*layers).eval(), torch.randn(1, 1, 16, 16)
    prepared = pt2e.prepare_pt2e(torch.export.export(model, (x,)).module(), quantizer)
    prepared(x)
    program = torch.export.export(pt2e.convert_pt2e(prepared), (x,))
    wanted = program.module()(x)
    spec = CudaBackend.generate_method_name_compile_spec("forward")
    edge = to_edge_transform_and_lower(program, partitioner=[CudaPartitioner([spec])])
    assert report(edge).methods["forward"].on_host() == []
    (delegate,) = delegates(edge)
    assert len(delegate.weights) < 1.3 * sum(p.numel() for p in model.parameters())
    built = edge.to_executorch()
    data = [bytes(each) for each in built._tensor_data.values()]
    (found,) = runtime.load(bytes(built.buffer), data).run(x)
    torch.testing.assert_close(found, wanted)
