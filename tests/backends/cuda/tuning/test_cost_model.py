"""The fastest tile by times that were measured, elsewhere and before."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from pathlib import Path

import pytest
from executorch.backends.cuda.tuning import cost_model as tiles
from executorch.backends.cuda.tuning.gpu_properties import properties
from executorch.exir.backend.compile_spec_schema import CompileSpec
from hypothesis import given
from hypothesis import strategies as st

from torchtrt_executorch.nogpu.cuda_backend import TUNED, target_gpu
from torchtrt_executorch.nogpu.target.gpu_description import GpuDescription
from torchtrt_executorch.nogpu.tuning.problem import problems

HOPPER, AMPERE = (
    properties(GpuDescription.parse_list(each)[0])
    for each in ("sm_90:80GiB", "sm_86:8GiB")
)
SMALL, LARGE = tiles.Tile(16, 32, 64, 2, 2), tiles.Tile(128, 128, 64, 3, 4)
MATMUL = tiles.Matmul("product float16", 64, 64, 64)
#: A file, of one product.
OWN = {
    "capability": [8, 6],
    "multi_processors": 84,
    "tiles": [SMALL, LARGE],
    "products": [[MATMUL, [9, 5]]],
}


def every(file: dict) -> list[tuple[tiles.Matmul, dict[tiles.Tile, float]]]:
    return [row for rows in file["products"].values() for row in rows]


def test_each_file_says_how_it_was_made() -> None:
    """What is multiplied on tensor cores by the Triton that the newest torch has."""
    files = {file["how"]["triton"]: file for file in tiles.files(HOPPER)}
    assert {file["how"]["gpu"] for file in files.values()} == {"NVIDIA H200"}
    kinds = {triton: set(file["products"]) for triton, file in files.items()}
    assert kinds == {
        "3.6.0": {"product float32", "convolution float32", "sum float16"},
        "3.8.0": {
            *("product float16", "product float32 tf32", "product float32 tf32x3"),
            *("convolution float16", "convolution float32 tf32"),
            "convolution float32 tf32x3",
        },
    }
    assert len(every(files["3.8.0"])) >= len(problems())


def test_what_was_measured_is_chosen_nearly_as_it_was() -> None:
    """Neighbours weigh in, also of the same size: times are no better than that."""
    for matmul, times in itertools.chain(*map(every, tiles.files(HOPPER))):
        chosen = min(times, key=lambda tile: tiles.cost(matmul, tile, HOPPER))
        assert times[chosen] < 1.1 * min(times.values()), matmul


@given(
    st.sampled_from(["float32", "float32 tf32", "float32 tf32x3", "float16"]),
    *[st.integers(0, 15).map(lambda power: 1 << power)] * 3,
    st.sampled_from([HOPPER, AMPERE]),
)
def test_any_size_has_an_order(dtype, m, n, k, gpu) -> None:
    matmul = tiles.Matmul(f"product {dtype}", m, n, k)
    _, matmuls = tiles.measured(matmul.kind, gpu)
    known = {tile for _, times in matmuls for tile in times}
    costs = [tiles.cost(matmul, tile, gpu) for tile in known]
    assert min(costs) < float("inf")


@pytest.mark.parametrize("rows, most", [(1024, 4), (4096, 4), (151936, 8)])
def test_the_fastest_blocks_of_a_sum(rows: int, most: int) -> None:
    """As wide as four warps load at once, for all but the longest rows; several rows of a matrix of very many."""
    found = tiles.fastest(tiles.Matmul("sum float16", rows, 1, 2560), HOPPER)
    assert (
        found.m <= most and found.k in (512, 1024) and found.warps in (2, 4, 8)
    ), found


def test_small_and_large() -> None:
    def order(matmul: tiles.Matmul) -> bool:
        costs = [tiles.cost(matmul, tile, HOPPER) for tile in (SMALL, LARGE)]
        return costs[0] < costs[1]

    assert not order(tiles.Matmul("product float16", 8192, 8192, 4096))
    assert tiles.cost(tiles.Matmul("product int8", 8, 8, 8), SMALL, HOPPER) == float(
        "inf"
    )


def test_a_file_of_one_s_own(tmp_path: Path) -> None:
    """It goes before ours, where it is of a nearer capability or the same."""
    file = tmp_path / "sm_86.json"
    matmul = MATMUL
    others = [
        tiles.Matmul("convolution float16", 64, 64, 64),
        tiles.Matmul("sum float16", 4096, 1, 2560),
    ]
    before = [tiles.fastest(each, AMPERE) for each in others]
    assert None not in before
    file.write_text(json.dumps(OWN))
    ampere, hopper = (
        dataclasses.replace(gpu, measurements=(file,)) for gpu in (AMPERE, HOPPER)
    )
    assert ampere == AMPERE and repr(ampere) == repr(AMPERE)  # a cache key has digests
    assert tiles.measured(matmul.kind, ampere)[0] == 84
    assert tiles.measured(matmul.kind, hopper)[0] == 132
    order = [tiles.cost(matmul, tile, ampere) for tile in (SMALL, LARGE)]
    assert order[1] < order[0]
    # Of what isn't in it, ours knows as much as without it.
    assert [tiles.fastest(each, ampere) for each in others] == before


def test_the_variable_names_files(tmp_path: Path, monkeypatch) -> None:
    names = [tmp_path / "one.json", tmp_path / "two.json"]
    monkeypatch.setenv(TUNED, os.pathsep.join(map(str, names)))
    gpu = target_gpu([CompileSpec("gpu", b"sm_90:80GiB")])
    assert gpu is not None and gpu.measurements == tuple(names)


def test_without_a_file(monkeypatch) -> None:
    monkeypatch.setattr(tiles, "files", lambda gpu: [])
    matmul = tiles.Matmul("product float16", 64, 64, 64)
    assert tiles.cost(matmul, SMALL, HOPPER) == float("inf")
    assert tiles.fastest(matmul, HOPPER) is None


def own(**changes: object) -> bytes:
    return json.dumps(OWN | changes).encode()


WRONG = {
    "empty": b"",
    "a list": b"[]",
    "nothing in it": b"{}",
    "bytes": b"\xff\xfe\x00",
    "no multiprocessors": own(multi_processors=0),
    "half a multiprocessor": own(multi_processors=0.5),
    "one number of a capability": own(capability=[9]),
    "a capability as text": own(capability="90"),
    "a tile of nothing": own(tiles=[[0] * 5, LARGE]),
    "half a tile": own(tiles=[SMALL[:2], LARGE]),
    "a size of 0": own(products=[[[*MATMUL[:3], 0], [9, 5]]]),
    "a size as text": own(products=[[["product float16", "a", 64, 64], [9, 5]]]),
    "a product as a number": own(products=[[1, 2]]),
    "fewer times than tiles": own(products=[[MATMUL, [9]]]),
    "more times than tiles": own(products=[[MATMUL, [9, 5, 1]]]),
    "a time as text": own(products=[[MATMUL, ["9", 5]]]),
    "a negative time": own(products=[[MATMUL, [-9, 5]]]),
    "no number": own(products=[[MATMUL, [float("nan"), 5]]]),
    "for ever": own(products=[[MATMUL, [float("inf"), 5]]]),
}


@pytest.mark.parametrize("what", [*WRONG, "missing", "a folder"])
def test_a_file_of_another_kind(what: str, tmp_path: Path) -> None:
    """One sentence names it."""
    file = tmp_path / "other.json"
    if what in WRONG:
        file.write_bytes(WRONG[what])
    elif what == "a folder":
        file.mkdir()
    gpu = dataclasses.replace(HOPPER, measurements=(file,))
    with pytest.raises(ValueError, match=r"other.json is no file of measured tiles \("):
        tiles.files(gpu)
