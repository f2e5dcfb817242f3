"""The edits of upstream's source, by upstream package: what ``make patches`` prints as diffs."""

from __future__ import annotations

from collections.abc import Mapping

from torchtrt_executorch.overlay.edit import Edit


def edits_of(
    module: str,
    *rows: tuple[str, str, str],
    releases: Mapping[str, str] | None = None,
) -> tuple[Edit, ...]:
    """Return the edits of one module.

    Args:
        module: Upstream module.
        rows: Of each edit its scope, place and code.
        releases: See :class:`~torchtrt_executorch.overlay.edit.Edit`.
    """
    return tuple(Edit(module, *row, releases=releases or {}) for row in rows)
