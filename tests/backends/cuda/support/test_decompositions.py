"""Decompositions for CudaBackend compute what eager does."""

from __future__ import annotations

import pytest
import torch
from executorch.backends.cuda.support.decompositions import decompositions
from executorch.exir.decompositions.sampling import roi_align
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

aten = torch.ops.aten
TABLE = decompositions()
NUMBERS = st.sampled_from([-1.5, 0.0, 2.0, 3.25, torch.nan])


def tensors(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[Tensor]:
    sizes = st.tuples(st.integers(1, 4), st.integers(1, 5))
    return sizes.flatmap(
        lambda size: st.lists(
            numbers, min_size=size[0] * size[1], max_size=size[0] * size[1]
        ).map(lambda found: torch.tensor(found).reshape(size))
    )


@given(x=tensors(NUMBERS), dim=st.sampled_from([0, 1, -1]), keepdim=st.booleans())
@pytest.mark.parametrize("operator", [aten.median.dim, aten.nanmedian.dim], ids=str)
def test_medians(
    operator: torch._ops.OpOverload, x: Tensor, dim: int, keepdim: bool
) -> None:
    values, indices = TABLE[operator](x, dim, keepdim)
    wanted = operator(x, dim, keepdim)
    torch.testing.assert_close(values, wanted[0], equal_nan=True)
    assert indices.shape == wanted[1].shape and indices.dtype == wanted[1].dtype
    index = indices if keepdim else indices.unsqueeze(dim)
    torch.testing.assert_close(
        x.gather(dim, index).reshape(values.shape), values, equal_nan=True
    )


@given(x=tensors(NUMBERS))
@pytest.mark.parametrize(
    "operator", [aten.median.default, aten.nanmedian.default], ids=str
)
def test_medians_of_all(operator: torch._ops.OpOverload, x: Tensor) -> None:
    torch.testing.assert_close(TABLE[operator](x), operator(x), equal_nan=True)


@given(x=tensors(NUMBERS), data=st.data())
def test_kth_values(x: Tensor, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, x.shape[1]))
    operator = aten.kthvalue.default
    wanted = operator(x, k)[0]
    torch.testing.assert_close(TABLE[operator](x, k)[0], wanted, equal_nan=True)


@pytest.mark.parametrize("beta", [0, 1, 0.3])
@pytest.mark.parametrize("alpha", [1, 2])
def test_sums_of_matmuls(beta: float, alpha: float) -> None:
    x, left, right = torch.randn(3, 5), torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    operator, factors = aten.addbmm.default, {"beta": beta, "alpha": alpha}
    found = TABLE[operator](x, left, right, **factors)
    torch.testing.assert_close(found, operator(x, left, right, **factors))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, torch.inf])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_distances(p: float, batch: tuple[int, ...]) -> None:
    x, y = torch.randn(*batch, 4, 5), torch.randn(*batch, 6, 5)
    x[..., 0, :] = y[..., 0, :]
    operator = aten._cdist_forward.default
    found = TABLE[operator](x, y, p, None)
    torch.testing.assert_close(found, operator(x, y, p, None), rtol=1e-4, atol=1e-5)


@given(
    sizes=st.tuples(st.integers(1, 14), st.integers(1, 14)),
    # PyTorch's own kernel is wrong of one column: it writes its rows elsewhere.
    output=st.tuples(st.integers(1, 30), st.integers(2, 30)),
    align_corners=st.booleans(),
    scales=st.sampled_from([(None, None), (0.37, 1.7)]),
)
@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
def test_antialiased_resizing(
    kind: str,
    sizes: tuple[int, int],
    output: tuple[int, int],
    align_corners: bool,
    scales: tuple[float | None, float | None],
) -> None:
    operator = getattr(aten, f"_upsample_{kind}2d_aa").default
    x = torch.randn(2, 3, *sizes, dtype=torch.float64)
    if scales[0] is not None and scales[1] is not None:
        output = (int(sizes[0] * scales[0]) or 1, int(sizes[1] * scales[1]) + 1)
    given = (x, list(output), align_corners, *scales)
    torch.testing.assert_close(TABLE[operator](*given), operator(*given))
    narrow = (x.half(), *given[1:])
    found = TABLE[operator](*narrow)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.double(), operator(*given), atol=4e-3, rtol=4e-3)


def crop(x: Tensor, roi: Tensor, bins: int, samples: int) -> Tensor:
    """RoI align of one box, by bilinear sampling of a grid, the border repeated for a pixel."""
    image, left, top, right, bottom = roi.tolist()
    places = (torch.arange(bins * samples) + 0.5) / (bins * samples)
    rows, columns = top + (bottom - top) * places, left + (right - left) * places
    height, width = x.shape[-2:]
    grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1], -1)
    scaled = 2 * grid / torch.tensor([width - 1, height - 1]) - 1
    sampled = torch.nn.functional.grid_sample(
        x[int(image)][None], scaled[None], padding_mode="border", align_corners=True
    )
    inside = (grid >= -1) & (grid <= torch.tensor([width, height]))
    kept = sampled * inside.all(-1)
    return torch.nn.functional.avg_pool2d(kept, samples)[0]


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_roi_align(samples: int) -> None:
    x = torch.randn(2, 3, 12, 16)
    boxes = [[1, 2, 8, 9], [-3, -2, 20, 14], [5, 5, 5.5, 6], [14, 10, 18, 16]]
    rois = torch.tensor([[index % 2, *box] for index, box in enumerate(boxes)])
    found = roi_align(x, rois, 1.0, 4, 4, samples, False)
    smallest = torch.cat([rois[:, 3:] - rois[:, 1:3]]).clamp(min=1)
    rois[:, 3:] = rois[:, 1:3] + smallest
    wanted = torch.stack([crop(x, roi, 4, samples) for roi in rois])
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    half = rois.clone()
    half[:, 1:] = (half[:, 1:] + 0.5) * 2
    aligned = roi_align(x, half, 0.5, 4, 4, samples, True)
    torch.testing.assert_close(aligned, wanted, atol=1e-5, rtol=1e-5)


def test_roi_align_of_as_many_samples_as_boxes_take_is_left() -> None:
    given = torch.randn(1, 3, 4, 4), torch.tensor([[0.0, 0, 0, 3, 3]])
    assert roi_align(*given, 1.0, 2, 2, -1, True) is NotImplemented


def test_a_median_of_one_number() -> None:
    values, indices = TABLE[aten.median.dim](torch.tensor(2.0), 0)
    assert values == 2 and indices == 0


@given(
    sizes=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    mode=st.sampled_from([0, 1, 2]),
    last=st.booleans(),
    padding=st.sampled_from([-1, 0, 3]),
    weighted=st.booleans(),
    beyond=st.integers(0, 2),
)
@pytest.mark.parametrize(
    "operator",
    [aten._embedding_bag.default, aten._embedding_bag_forward_only.default],
    ids=str,
)
def test_bags_of_embeddings(
    operator: torch._ops.OpOverload,
    sizes: list[int],
    mode: int,
    last: bool,
    padding: int,
    weighted: bool,
    beyond: int,
) -> None:
    """Also with indices ``beyond`` the last offset, which is to be how many there are."""
    generator = torch.Generator().manual_seed(sum(sizes) + mode)
    weight = torch.randn(6, 4, generator=generator)
    ends = torch.tensor([0, *sizes]).cumsum(0)
    count = int(ends[-1]) + (beyond if last else 0)
    indices = torch.randint(0, 6, (count,), generator=generator)
    offsets = ends if last else ends[:-1]
    weights = torch.rand(len(indices), generator=generator)
    given_weights = weights if weighted and mode == 0 else None
    arguments = (weight, indices, offsets, False, mode, False, given_weights)
    bags = TABLE[operator](*arguments, last, padding)[0]
    torch.testing.assert_close(bags, operator(*arguments, last, padding)[0])
