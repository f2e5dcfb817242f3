"""The fastest tile by times that were measured, elsewhere and before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from executorch.backends.cuda import _measured_tiles as tiles
from executorch.backends.cuda._gpu_properties import properties
from hypothesis import given
from hypothesis import strategies as st

from torchtrt_executorch import tuning
from torchtrt_executorch.host.described_gpu import DescribedGpu

HOPPER, AMPERE = (
    properties(DescribedGpu.parse_list(each)[0])
    for each in ("sm_90:80GiB", "sm_86:8GiB")
)
SMALL, LARGE = tiles.Tile(16, 32, 64, 2, 2), tiles.Tile(128, 128, 64, 3, 4)


@pytest.fixture(scope="module")
def ours() -> dict:
    return tiles.measured((9, 0))


def test_ours_says_how_it_was_made(ours) -> None:
    assert ours["how"]["gpu"] == "NVIDIA H200"
    kinds = [product.kind.split()[0] for product, _ in ours["products"]]
    assert len(kinds) - kinds.count("sum") == len(tuning.problems())


def test_what_was_measured_is_chosen_nearly_as_it_was(ours) -> None:
    """Neighbours weigh in, also of the same size: times are no better than that."""
    for product, times in ours["products"]:
        chosen = min(times, key=lambda tile: tiles.cost(product, tile, HOPPER))
        assert times[chosen] < 1.4 * min(times.values()), product


@given(
    st.sampled_from(["float32", "float16"]),
    *[st.integers(0, 15).map(lambda power: 1 << power)] * 3,
    st.sampled_from([HOPPER, AMPERE]),
)
def test_any_size_has_an_order(ours, dtype, m, n, k, gpu) -> None:
    product = tiles.Product(f"product {dtype}", m, n, k)
    known = {tile for _, times in ours["products"] for tile in times}
    costs = [tiles.cost(product, tile, gpu) for tile in known]
    assert min(costs) < float("inf")


@pytest.mark.parametrize("rows", [1024, 4096, 151936])
def test_the_fastest_blocks_of_a_sum(rows: int) -> None:
    """As wide as four warps load at once, for all but the longest rows."""
    found = tiles.fastest(tiles.Product("sum float16", rows, 1, 2560), HOPPER)
    assert found.m <= 4 and found.k in (512, 1024) and found.warps in (2, 4, 8), found


def test_small_and_large() -> None:
    def order(product: tiles.Product) -> bool:
        costs = [tiles.cost(product, tile, HOPPER) for tile in (SMALL, LARGE)]
        return costs[0] < costs[1]

    assert not order(tiles.Product("product float16", 8192, 8192, 4096))
    assert tiles.cost(tiles.Product("product int8", 8, 8, 8), SMALL, HOPPER) == float(
        "inf"
    )


def test_a_file_of_one_s_own(tmp_path: Path, monkeypatch) -> None:
    """It goes before ours, where it is of a nearer capability or the same."""
    file = tmp_path / "sm_86.json"
    product = tiles.Product("product float16", 64, 64, 64)
    own = {"capability": [8, 6], "multi_processors": 84, "tiles": [SMALL, LARGE]}
    file.write_text(json.dumps(own | {"products": [[product, [9, 5]]]}))
    monkeypatch.setenv(tiles.VARIABLE, str(file))
    assert tiles.measured((8, 6))["multi_processors"] == 84
    assert tiles.measured((9, 0))["multi_processors"] == 132
    order = [tiles.cost(product, tile, AMPERE) for tile in (SMALL, LARGE)]
    assert order[1] < order[0]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"tiles": [], "products": [[1, 2]]}']
)
def test_a_file_of_another_kind(text: str, tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    monkeypatch.setenv(tiles.VARIABLE, str(file))
    with pytest.raises(
        ValueError, match="other.json isn't a file of torchtrt-executorch tune"
    ):
        tiles.measured((9, 0))
