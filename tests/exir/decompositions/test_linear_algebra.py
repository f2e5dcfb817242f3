"""Inverses, determinants and factors of small matrices: eager's values, on the host and in ExecuTorch's own runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.decompositions.linear_algebra import DECOMPOSITIONS
from torch import Tensor
from torch.export import Dim, export

from ...executorch_runtime import UpstreamMethod
from ...lowering import Function

linalg = torch.linalg


def positive(x: Tensor) -> Tensor:
    return x @ x.mT + torch.eye(x.shape[-1])


#: Of a matrix, and of two columns of as many rows.
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "inv": lambda a, b: linalg.inv(a),
    "inverse": lambda a, b: torch.inverse(a),
    "solve": lambda a, b: linalg.solve(a, b),
    "solve of rows": lambda a, b: linalg.solve(a, b.mT, left=False),
    "solve of vectors": lambda a, b: linalg.solve(a, b[..., 0]),
    "det": lambda a, b: linalg.det(a),
    "slogdet": lambda a, b: tuple(linalg.slogdet(a)),
    "cholesky": lambda a, b: linalg.cholesky(positive(a)),
    "cholesky, upper": lambda a, b: linalg.cholesky(positive(a), upper=True),
    "solve_triangular": lambda a, b: linalg.solve_triangular(positive(a), b, upper=True),
    "solve_triangular of rows": lambda a, b: linalg.solve_triangular(
        positive(a), b.mT, upper=False, left=False, unitriangular=True
    ),
    "cholesky_solve": lambda a, b: torch.cholesky_solve(b, positive(a).tril()),
    "cholesky_solve, upper": lambda a, b: b.cholesky_solve(positive(a).triu(), True),
    "cholesky_inverse": lambda a, b: torch.cholesky_inverse(positive(a).tril()),
}  # fmt: skip


def _inputs(*shape: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    a, b = torch.randn(*shape, shape[-1]), torch.randn(*shape, 2)
    a[..., 0, 0] = 0  # of which no elimination begins without an exchange
    return a, b


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_eager_s_in_executorch(name: str) -> None:
    """Upstream: "Operator torch._ops.aten.linalg_inv_ex.default is not in Core ATen opset"."""
    model, inputs = Function(FUNCTIONS[name]), _inputs(2, 3)
    rows = {0: Dim("batch", min=1, max=4)}
    shapes = rows, (rows,)  # of Function's ``others``
    edge = to_edge_transform_and_lower(export(model, inputs, dynamic_shapes=shapes))
    method = UpstreamMethod(edge.to_executorch().buffer)
    for batch in (2, 1, 4):
        inputs = _inputs(batch, 3)
        wanted = model(*inputs)
        wanted = [wanted] if isinstance(wanted, Tensor) else [*wanted]
        torch.testing.assert_close(
            [*method.execute(inputs)], wanted, rtol=1e-3, atol=1e-3
        )


@pytest.mark.parametrize("rows", [1, 2, 7, 16])
def test_each_row_is_eliminated(rows: int) -> None:
    a, b = _inputs(rows)
    aten = torch.ops.aten
    if rows > 1:
        found, *_ = DECOMPOSITIONS[aten._linalg_solve_ex.default](a, b)
        torch.testing.assert_close(a @ found, b, rtol=1e-3, atol=1e-3)
    factor, _ = DECOMPOSITIONS[aten.linalg_cholesky_ex.default](positive(a))
    torch.testing.assert_close(factor, linalg.cholesky(positive(a)))


def test_more_rows_stay_whole() -> None:
    assert DECOMPOSITIONS[torch.ops.aten._linalg_det.default](torch.eye(17)) is (
        NotImplemented
    )
