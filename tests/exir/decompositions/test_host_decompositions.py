"""Operators that no partitioner supports and ExecuTorch has no kernel for compute what eager does, by those that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.decompositions import _sizes, linear_algebra, scatters
from executorch.exir.decompositions.host import host_decompositions
from executorch.exir.program.operators.host_kernels import host_kernels, kernel_of
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

from ...lowering import assert_same_as_eager, lower

aten = torch.ops.aten
TABLE = host_decompositions()
NUMBERS = st.sampled_from([-1.5, 0.0, 0.5, 2.0, 3.25])
ODD = NUMBERS | st.sampled_from([torch.nan, torch.inf, -torch.inf])
INTEGERS = st.integers(-4, 4)


def tensors(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Tensor]:
    sizes = st.tuples(st.integers(1, 4), st.integers(1, 9))
    return sizes.flatmap(
        lambda size: st.lists(
            numbers, min_size=size[0] * size[1], max_size=size[0] * size[1]
        ).map(lambda found: torch.tensor(found).reshape(size))
    )


ANY = tensors(ODD) | tensors(INTEGERS)
DIMS = st.sampled_from([0, 1, -1])


def same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, Tensor):
        found, wanted = [found], [wanted]
    torch.testing.assert_close([*found], [*wanted], equal_nan=True)


@given(x=ANY, dim=DIMS)
@pytest.mark.parametrize("operator", [aten.cummax.default, aten.cummin.default])
def test_cumulative_extremes_and_their_indices(
    operator: Any, x: Tensor, dim: int
) -> None:
    same(TABLE[operator](x, dim), operator(x, dim))


@given(x=tensors(NUMBERS) | tensors(INTEGERS), dim=DIMS)
def test_cumulative_products(x: Tensor, dim: int) -> None:
    same(TABLE[aten.cumprod.default](x, dim), aten.cumprod.default(x, dim))


@given(x=tensors(NUMBERS | st.sampled_from([torch.inf, -torch.inf])), dim=DIMS)
def test_cumulative_logarithms_of_sums(x: Tensor, dim: int) -> None:
    same(TABLE[aten.logcumsumexp.default](x, dim), aten.logcumsumexp.default(x, dim))


@given(sizes=st.tuples(*[st.integers(1, 7)] * 4), seed=st.integers(0, 99))
def test_adaptive_maxima_and_their_indices(sizes: tuple[int, ...], seed: int) -> None:
    operator = aten.adaptive_max_pool2d.default
    torch.manual_seed(seed)
    x = torch.randint(-3, 3, (2, 3, *sizes[:2])).float()  # many are alike
    same(TABLE[operator](x, sizes[2:]), operator(x, sizes[2:]))


@given(x=ANY, dim=DIMS, descending=st.booleans())
def test_sorting_is_stable(x: Tensor, dim: int, descending: bool) -> None:
    options = {"stable": True, "dim": dim, "descending": descending}
    same(TABLE[aten.sort.stable](x, **options), aten.sort.stable(x, **options))


@given(
    x=ANY,
    edges=st.lists(st.sampled_from([-1.5, 0.0, 2.0]), min_size=1, max_size=5),
    options=st.fixed_dictionaries({"right": st.booleans(), "out_int32": st.booleans()}),
)
def test_look_ups_in_sorted_values(x: Tensor, edges: list[float], options: Any) -> None:
    sequence = torch.tensor(edges).sort()[0]
    operator = aten.searchsorted.Tensor
    same(TABLE[operator](sequence, x, **options), operator(sequence, x, **options))
    rows = sequence.expand(x.shape[0], -1).contiguous()
    same(TABLE[operator](rows, x, **options), operator(rows, x, **options))
    buckets = aten.bucketize.Tensor
    same(TABLE[buckets](x, sequence, **options), buckets(x, sequence, **options))


@given(
    x=tensors(NUMBERS),
    data=st.data(),
    dim=DIMS,
    include_self=st.booleans(),
    reduce=st.sampled_from(["sum", "mean", "amax", "amin", "prod"]),
)
def test_reductions_by_index(
    x: Tensor, data: Any, dim: int, include_self: bool, reduce: str
) -> None:
    sizes = [*x.shape]
    sizes[dim] = data.draw(st.integers(1, 6))
    count = sizes[0] * sizes[1]
    rows = st.integers(0, x.shape[dim] - 1)
    places = st.lists(rows, min_size=count, max_size=count)
    index = torch.tensor(data.draw(places)).reshape(sizes)
    source = torch.linspace(-2, 2, index.numel() * 4).reshape(sizes[0] * 2, -1)
    operator = aten.scatter_reduce.two
    arguments = (dim, index, source[:, : sizes[1] * 2], reduce)
    for values in (x, (x * 4).int()):
        arguments = (*arguments[:2], arguments[2].to(values.dtype), reduce)
        found = TABLE[operator](values, *arguments, include_self=include_self)
        same(found, operator(values, *arguments, include_self=include_self))


class Calls(nn.Module):
    """Some calls of one operator behind a linear."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.function = nn.Linear(6, 6), function
        self.register_buffer("rows", torch.tensor([2, 0, 2, 1, 0, 0]))
        self.register_buffer("edges", torch.linspace(-1, 1, 5))
        self.down = nn.Conv3d(2, 4, (2, 3, 1), (2, 1, 3), 1, groups=2)
        self.up = nn.ConvTranspose3d(4, 6, (3, 1, 2), (2, 1, 2), (1, 0, 1), (1, 0, 1), 2, dilation=(1, 1, 2))  # fmt: skip
        self.bag = nn.EmbeddingBag(7, 3, mode="max", padding_idx=1)

    def forward(self, x: Tensor) -> Any:
        found = self.function(self, self.linear(x))  # type: ignore[call-arg]
        return found if isinstance(found, Tensor) else tuple(found)


def scattered(s: Any, x: Tensor) -> Tensor:
    index = s.rows.expand(x.shape)
    return x.scatter_reduce(1, index, x.sin(), "amax", include_self=False)


def volume(x: Tensor) -> Tensor:
    found = x.unsqueeze(2) * x.unsqueeze(1)
    return found.unflatten(2, (2, 3)).unflatten(1, (2, 3))


CALLS: dict[str, Callable[..., Any]] = {
    "aten._embedding_bag": lambda s, x: s.bag(x.abs().long() + s.rows),
    "aten._embedding_bag_forward_only": lambda s, x: s.bag(x.abs().long()),
    "aten._upsample_bilinear2d_aa": None,  # has a kernel
    "aten._upsample_bicubic2d_aa": lambda s, x: nn.functional.interpolate(
        x.unflatten(1, (1, 2, 3)), (1, 2), mode="bicubic", antialias=True
    ),
    "aten.sort": lambda s, x: x.sort(1, descending=True),
    "aten.searchsorted": lambda s, x: torch.searchsorted(s.edges, x, right=True),
    "aten.bucketize": lambda s, x: torch.bucketize(x, s.edges),
    "aten.median": lambda s, x: x.median(1),
    "aten.nanmedian": lambda s, x: x.nanmedian(1, keepdim=True),
    "aten.kthvalue": lambda s, x: x.kthvalue(2),
    "aten.cumprod": lambda s, x: x.cumprod(1),
    "aten.logcumsumexp": lambda s, x: x.logcumsumexp(1),
    "aten.cummax": lambda s, x: x.cummax(1),
    "aten.cummin": lambda s, x: x.cummin(1),
    "aten.scatter_reduce": scattered,
    "aten.index_reduce": lambda s, x: x.index_reduce(1, s.rows, x.cos(), "prod"),
    "aten.convolution": lambda s, x: s.up(s.down(volume(x)).relu()),
    "aten.avg_pool3d": lambda s, x: nn.functional.avg_pool3d(volume(x), 2, 1, 1),
    "aten.max_pool3d_with_indices": lambda s, x: nn.functional.max_pool3d(
        volume(x), (2, 3, 2), (1, 2, 1), 1, ceil_mode=True, return_indices=True
    ),
    "aten._adaptive_avg_pool3d": lambda s, x: nn.functional.adaptive_avg_pool3d(
        volume(x), (2, 1, 3)
    ),
    "aten.adaptive_max_pool2d": lambda s, x: nn.functional.adaptive_max_pool2d(
        volume(x).flatten(2, 3), (4, 2), return_indices=True
    ),
    "aten.adaptive_max_pool3d": lambda s, x: nn.functional.adaptive_max_pool3d(
        volume(x), (2, 1, 2), return_indices=True
    ),
    "aten.fmax": lambda s, x: torch.fmax(x, 0 / x.relu()),
    "aten.fmin": lambda s, x: torch.fmin(0 / x.relu(), x),
    "aten.exp2": lambda s, x: x.exp2(),
    "aten.ldexp": lambda s, x: torch.ldexp(x, s.rows),
    "aten.hypot": lambda s, x: torch.hypot(x, x.relu()),
    "aten.round": lambda s, x: (x.round(decimals=1), (x * 99).round(decimals=-1)),
    "aten.signbit": lambda s, x: torch.signbit(x),
    "aten.copysign": lambda s, x: torch.copysign(x.sin(), x),
    "aten.addmv": lambda s, x: torch.addmv(x[:, 0], x, x[0], beta=0.5, alpha=2),
    "aten.__lshift__": lambda s, x: ((x * 9).int() << 2, (x * 9).long() << s.rows),
    "aten.__rshift__": lambda s, x: ((x * 9).int() >> 2, (x * 9).long() >> s.rows),
}  # fmt: skip


def test_every_decomposition_has_a_case() -> None:
    elsewhere = {*linear_algebra.DECOMPOSITIONS}  # test_linear_algebra.py
    named = {str(operator).rpartition(".")[0] for operator in {*TABLE} - elsewhere}
    assert named - {"torchvision.roi_align"} == {*CALLS}


@pytest.mark.parametrize("name", CALLS)
def test_runs_in_executorch(name: str) -> None:
    if CALLS[name] is None:
        assert kernel_of(getattr(aten, name[5:]).default) in host_kernels()
        return
    model = Calls(CALLS[name]).eval()
    x = torch.linspace(-2, 2, 24).reshape(4, 6)
    shapes = ({0: Dim("rows", min=1, max=8)},)
    edge = lower(model, (x,), XnnpackPartitioner(), dynamic_shapes=shapes)
    calls = ((rows,) for rows in (x[:1], x, torch.cat([x, -x])))
    assert_same_as_eager(edge, model, *calls, upstream=True)


def test_no_tensor_of_many_elements_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    x, index = torch.zeros(6), torch.tensor([1, 1, 3])
    arguments = (x, 0, index, torch.ones(3), "amax")
    monkeypatch.setattr(_sizes, "MOST_ELEMENTS", 18)
    assert isinstance(scatters.scatter_reduce(*arguments), Tensor)
    monkeypatch.setattr(_sizes, "MOST_ELEMENTS", 17)
    assert scatters.scatter_reduce(*arguments) is NotImplemented
