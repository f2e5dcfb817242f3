"""Hostile programs, in a process of their own: it has to live, and its memory to stay whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchtrt_executorch.runtime.operators.kernels import executorch_kernels

from .. import fresh

FUZZER = Path(__file__).parent / "kernels.py"
VALUES = FUZZER.with_name("kernel_values.py")
SWEEP = FUZZER.with_name("operators.py")
NOT_SHOWN = """
from tests.fuzz.operators import operator, operators
from torchtrt_executorch.runtime import ProgramError, register_kernel
from torchtrt_executorch.runtime.operators.kernels import executorch_kernels, find_kernel, safe_kernels

assert safe_kernels() <= executorch_kernels()
others = {*operators()} - safe_kernels()
for name in others:
    try:
        find_kernel(name, None)
    except ProgramError as error:
        assert "wasn't shown to be safe" in str(error), error
    else:
        raise AssertionError(name)
    register_kernel(name, operator(name))
    find_kernel(name, None)
print(len(others))
"""
#: Those that read an index out of a tensor, and one of each other kind.
SAMPLE = (
    *("aten::_pdist_forward.out", "aten::embedding.out", "aten::gather.out"),
    *("aten::grid_sampler_2d.out", "aten::index.Tensor_out", "aten::index_put.out"),
    *("aten::index_put_", "aten::index_select.out", "aten::masked_scatter.out"),
    *("aten::max_pool2d_with_indices_backward.grad_input", "aten::scatter_add.out"),
    *("aten::scatter.src_out", "aten::repeat_interleave.Tensor_out"),
    *("aten::_fft_r2c.out", "aten::convolution_backward.out", "aten::topk.values"),
    *("aten::_upsample_bilinear2d_aa.out", "aten::tril.out", "aten::_fft_c2r.out"),
    *("aten::slice_scatter.out", "aten::split_copy.Tensor_out", "aten::add.out"),
)
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


def _attack(*words: str) -> tuple[int, str]:
    """The exit status of the sweep, and what it printed."""
    done = fresh.run(
        CODE, str(SWEEP), *words, env=dict(os.environ), cwd=SWEEP.parents[2]
    )
    assert done.stdout, done.stderr[-2000:]
    return done.returncode, done.stdout


def test_kernels_stay_within_their_tensors() -> None:
    """Of max_pool2d's gradient and _pdist_forward, the kernels themselves don't."""
    status, printed = _attack("--count", "100", *SAMPLE)
    assert (
        status == 0 and f"{len(SAMPLE)} of {len(SAMPLE)} shown safe" in printed
    ), printed


def test_the_sweep_sees_harm() -> None:
    """ExecuTorch's own quantized kernels end the process for arguments that don't fit."""
    status, printed = _attack("--count", "60", "quantized_decomposed::add.out")
    assert status == 0 and "NOT SHOWN SAFE" in printed and "SIGABRT" in printed


@pytest.mark.slow
def test_all_kernels_stay_within_their_tensors() -> None:
    status, printed = _attack("--count", "1000", "--seed", "1")
    assert status == 0, printed


def test_executorch_s_kernels_read_their_scalar_arguments() -> None:
    """With other scalars than their defaults, values are PyTorch's; those that aren't are known by name."""
    done = fresh.run(CODE, str(VALUES), env=dict(os.environ), cwd=VALUES.parents[2])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    calls, *_ = done.stdout.splitlines()[-1].split()
    assert int(calls) > 9000


def test_what_was_not_shown_safe_needs_the_callers_word() -> None:
    """In a process of its own, which has operators that no other test is to find."""
    done = fresh.run(NOT_SHOWN, env=dict(os.environ), cwd=SWEEP.parents[2])
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) >= 9


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
