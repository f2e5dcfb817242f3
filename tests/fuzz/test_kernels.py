"""Hostile programs, in a process of their own: it has to live, and its memory to stay whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchtrt_executorch.runtime.kernels import executorch_kernels

from .. import fresh

FUZZER = Path(__file__).parent / "kernels.py"
CODE = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"


def _fuzz(first: int, count: int, *names: str) -> tuple[int, int]:
    """Return how many programs ran and how many were refused."""
    words = (str(FUZZER), str(first), str(count), *names)
    done = fresh.run(CODE, *words, env=dict(os.environ), cwd=FUZZER.parents[2])
    last = done.stderr.strip().splitlines()[-1:]
    assert done.returncode == 0, f"ended by {last}: {done.stderr[-2000:]}"
    ran, refused = map(int, done.stdout.split())
    return ran, refused


def test_what_was_found_is_refused() -> None:
    """Seed 1 of the first, and 2 of the second, once ended the process."""
    found = ("aten::_fft_r2c.out", "aten::_native_batch_norm_legit.no_stats_out")
    ran, refused = _fuzz(1, 2, *found)
    assert refused >= 2 and ran + refused == 4


def test_a_program_of_every_operator() -> None:
    ran, refused = _fuzz(0, 1)
    assert ran >= 15 and ran + refused >= 200


@pytest.mark.slow
def test_many_programs_of_every_operator() -> None:
    ran, _ = _fuzz(1, 60)
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
