"""Decompose inverses, determinants and factorizations of small matrices: by elimination, a few operators for each row.

Kalman filters, Gaussian processes and rigid motions use matrices of 2 to 10 rows. For a singular matrix, where eager mode raises, the
result has infinities or NaNs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
#: Rows: each takes a dozen operators.
_MOST_ROWS = 16


def inv_ex(matrix: Tensor, *, check_errors: bool = False) -> Any:
    """Decompose ``aten.linalg_inv_ex``; ``NotImplemented`` of more than 16 rows."""
    if not _is_small(matrix):
        return NotImplemented
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    result, _, _ = _eliminated(matrix, identity.expand(matrix.shape))
    return result, _no_info(matrix)


def solve_ex(
    matrix: Tensor, right_side: Tensor, *, left: bool = True, check_errors: bool = False
) -> Any:
    """Decompose ``aten._linalg_solve_ex``; ``NotImplemented`` of more than 16 rows."""
    if not _is_small(matrix):
        return NotImplemented
    # As PyTorch tells a batch of vectors from a matrix.
    of_vectors = right_side.ndim == 1 or (
        right_side.ndim == matrix.ndim - 1 and right_side.shape == matrix.shape[:-1]
    )
    columns = right_side.unsqueeze(-1) if of_vectors else right_side
    square = matrix
    if not left and not of_vectors:
        square, columns = matrix.mT, columns.mT
    batch = torch.broadcast_shapes(square.shape[:-2], columns.shape[:-2])  # type: ignore[no-untyped-call]
    square, columns = (
        operand.expand(*batch, *operand.shape[-2:]) for operand in (square, columns)
    )
    result, _, _ = _eliminated(square, columns)
    if of_vectors:
        result = result.squeeze(-1)
    elif not left:
        result = result.mT
    return result, *_no_factors(matrix), _no_info(matrix)


def det(matrix: Tensor) -> Any:
    """Decompose ``aten._linalg_det``; ``NotImplemented`` of more than 16 rows."""
    if not _is_small(matrix):
        return NotImplemented
    _, pivots, sign = _eliminated(matrix, matrix[..., :0])
    return sign * pivots.prod(-1), *_no_factors(matrix)


def slogdet(matrix: Tensor) -> Any:
    """Decompose ``aten._linalg_slogdet``; ``NotImplemented`` of more than 16 rows."""
    if not _is_small(matrix):
        return NotImplemented
    _, pivots, sign = _eliminated(matrix, matrix[..., :0])
    logarithm = pivots.abs().log().sum(-1)
    return sign * pivots.sign().prod(-1), logarithm, *_no_factors(matrix)


def cholesky_ex(
    matrix: Tensor, *, upper: bool = False, check_errors: bool = False
) -> Any:
    """Decompose ``aten.linalg_cholesky_ex``; ``NotImplemented`` of more than 16 rows."""
    if not _is_small(matrix):
        return NotImplemented
    rest = matrix.mT if upper else matrix  # of which the lower triangle is read
    rows = torch.arange(matrix.shape[-1], device=matrix.device)
    columns = []
    for index in range(matrix.shape[-1]):
        column = rest[..., index] / rest[..., index, index].sqrt().unsqueeze(-1)
        column = torch.where(rows >= index, column, 0.0)
        rest = rest - column.unsqueeze(-1) * column.unsqueeze(-2)
        columns.append(column)
    factor = torch.stack(columns, -2 if upper else -1)
    return factor, _no_info(matrix)


def solve_triangular(
    matrix: Tensor,
    right_side: Tensor,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Any:
    """Decompose ``aten.linalg_solve_triangular``; ``NotImplemented`` of more than 16 rows."""
    if not _is_small(matrix):
        return NotImplemented
    if not left:
        matrix, right_side, upper = matrix.mT, right_side.mT, not upper
    count = matrix.shape[-1]
    rows: list[Any] = [None] * count
    for index in reversed(range(count)) if upper else range(count):
        row = right_side[..., index : index + 1, :]
        if not unitriangular:
            row = row / matrix[..., index : index + 1, index : index + 1]
        right_side = right_side - matrix[..., :, index : index + 1] * row
        rows[index] = row
    result = torch.cat(rows, -2)
    return result if left else result.mT


def cholesky_solve(right_side: Tensor, factor: Tensor, upper: bool = False) -> Any:
    """Decompose ``aten.cholesky_solve``; ``NotImplemented`` of more than 16 rows."""
    if not _is_small(factor):
        return NotImplemented
    lower = factor.mT if upper else factor
    halfway = solve_triangular(lower, right_side, upper=False)
    return solve_triangular(lower.mT, halfway, upper=True)


def cholesky_inverse(factor: Tensor, upper: bool = False) -> Any:
    """Decompose ``aten.cholesky_inverse``; ``NotImplemented`` of more than 16 rows."""
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return cholesky_solve(identity.expand(factor.shape), factor, upper)


def _eliminated(matrix: Tensor, right_side: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the inverse of a matrix makes of columns, the pivots, and the sign of the rows' order.

    Gauss and Jordan's elimination: the largest value that is left of a column is its pivot, as in LAPACK.
    """
    count = matrix.shape[-1]
    rows = torch.arange(count, device=matrix.device)
    table = torch.cat([matrix, right_side], -1)
    pivots, signs = [], []
    for index in range(count):
        sizes = torch.where(rows >= index, table[..., index].abs(), -1.0)
        place = sizes.argmax(-1, keepdim=True)
        chosen = (rows == place).unsqueeze(-1)
        row = torch.where(chosen, table, 0.0).sum(-2, keepdim=True)
        table = torch.where(chosen, table[..., index : index + 1, :], table)
        pivot = row[..., index : index + 1]
        row = row / pivot
        reduced = table - table[..., index : index + 1] * row
        table = torch.where((rows == index).unsqueeze(-1), row, reduced)
        pivots.append(pivot.flatten(-2))
        signs.append(torch.where(place == index, 1.0, -1.0))
    sign = torch.cat(signs, -1).prod(-1).to(matrix.dtype)
    return table[..., count:], torch.cat(pivots, -1), sign


def _is_small(matrix: Tensor) -> bool:
    rows = matrix.shape[-1]
    floating = matrix.is_floating_point()
    return isinstance(rows, int) and 0 < rows <= _MOST_ROWS and floating


def _no_info(matrix: Tensor) -> Tensor:
    return torch.zeros(matrix.shape[:-2], dtype=torch.int32, device=matrix.device)


def _no_factors(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return what stands for the factors that autograd reads, and no model."""
    pivots = matrix.new_zeros(matrix.shape[:-1], dtype=torch.int32)
    return torch.full_like(matrix, torch.nan), pivots


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    _aten.linalg_inv_ex.default: inv_ex,
    _aten._linalg_solve_ex.default: solve_ex,
    _aten._linalg_det.default: det,
    _aten._linalg_slogdet.default: slogdet,
    _aten.linalg_cholesky_ex.default: cholesky_ex,
    _aten.linalg_solve_triangular.default: solve_triangular,
    _aten.cholesky_solve.default: cholesky_solve,
    _aten.cholesky_inverse.default: cholesky_inverse,
}
