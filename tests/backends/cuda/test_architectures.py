"""Models that people have are taken whole by ``CudaPartitioner``, alone; none is compiled here.

``tests/gpu/cuda_architectures.py`` makes and runs them and more.
"""

from __future__ import annotations

import pytest

from ...loading import load_file
from .conftest import needs_compilers

pytest.importorskip("transformers")
pytestmark = needs_compilers

architectures = load_file("tests/gpu/cuda_architectures.py")


@pytest.mark.parametrize("name", ["BERT", "ConvNext", "GPT-2", "LSTM", "ViT"])
def test_it_is_one_partition(name: str, capsys) -> None:
    edge = architectures.lower(name, gpu=None, partitioned_only=True)
    assert f"{name}: 1 partitions" in capsys.readouterr().out
    assert not architectures.left(edge)


@pytest.mark.slow
def test_what_inductor_cannot_compile_fused_is_compiled_apart() -> None:
    """ProphetNet's positions are computed by an expression that Inductor can't simplify where it is read."""
    from benchmarks import _zoo_models, zoo

    zoo._prepare(["cuda"])
    found = zoo.exported(_zoo_models.make("prophetnet"), "cuda")
    assert found["engines"] == 1 and found["difference"] < 1e-3
