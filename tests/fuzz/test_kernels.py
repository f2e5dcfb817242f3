"""Hostile programs, in a process of their own: it has to live, and its memory to stay whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torchtrt_executorch.runtime.kernels import executorch_kernels

FUZZER = Path(__file__).parent / "kernels.py"
#: Programs that once ended the process: operator, and seed.
FOUND = (("aten::_fft_r2c.out", 1), ("aten::_native_batch_norm_legit.no_stats_out", 2))


def _fuzz(first: int, count: int, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(FUZZER), str(first), str(count), *words],
        capture_output=True,
        text=True,
        cwd=FUZZER.parents[2],
    )
    last = done.stderr.strip().splitlines()[-1:]
    assert done.returncode == 0, f"ended by {last}: {done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.parametrize(("name", "seed"), FOUND)
def test_what_was_found_is_refused(name: str, seed: int) -> None:
    assert _fuzz(seed, 1, name)


def test_a_program_of_every_operator() -> None:
    ran, refused = map(int, _fuzz(0, 1).split())
    assert ran >= 15 and ran + refused >= 200


@pytest.mark.slow
def test_many_programs_of_every_operator() -> None:
    ran, _ = map(int, _fuzz(1, 60).split())
    assert ran >= 1000


def test_the_list_of_operators_is_executorch_s() -> None:
    """All that its runtime has kernels for, but what is not torch's."""
    from executorch.runtime import Runtime

    own = ("executorch_prim::", "aten::sym_", "aten::_local_scalar_dense")
    registered = {
        name
        for name in Runtime.get().operator_registry.operator_names
        if not name.startswith(own)
    }
    assert registered - executorch_kernels() == set()
    assert len(executorch_kernels()) < 300
