"""How many launches a decode step takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .compiled_kernels import kernels, programs
from .conftest import needs_compilers, without_gpu

pytestmark = [pytest.mark.builds, needs_compilers, without_gpu]


def test_a_decoder_s_layer_is_seven_launches() -> None:
    """Norms are in the GEMVs behind them, residuals and the activation in those before; the rest is attention's."""
    layers = programs.NAMED["decoder-layers-bf16"]
    layer = layers.build()[0]["forward"].layers[0]
    one = replace(layers, model=lambda: {"forward": layer})
    names = [kernel.name for kernel in kernels(one, "sm_90:80GiB")]
    # Query, key and value; the attention's output; the gate; the MLP's output.
    assert names.count("_gemv_kernel") == 4
    assert names.count("_attend") == 1
    # Rotated heads and the cache's new row; the mask's last key, with attention's counters.
    assert len(names) == 7, names
