"""``torchtrt-executorch cache``: list what is cached, with sizes, and remove it."""

from __future__ import annotations

import contextlib
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from torchtrt_executorch import cache as kept_things
from torchtrt_executorch.cache import folders


def cache(
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove all of it that isn't in use.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Print what is kept to be found again, where, and what it takes."""
    removed = folders.remove_down_to(folders.NOTHING) if clean else []
    rows: dict[str, dict[str, object]] = {}
    for entry in removed if clean else folders.kept():
        folder = str(entry.path.parent)
        row = rows.setdefault(
            f"{entry.kind}{folder}",
            {"kind": entry.kind, "folder": folder, "entries": 0, "bytes": 0},
        )
        row["entries"] += 1  # type: ignore[operator]
        row["bytes"] += entry.size  # type: ignore[operator]
    total = sum(entry.size for entry in folders.kept())
    bound = kept_things.limit()
    if as_json:
        shown = {"removed" if clean else "kept": [*rows.values()]}
        print(json.dumps(shown | {"bytes": total, "bound": bound}, indent=2))
        return
    from torchtrt_executorch.inspection.formatting import size  # imports torch

    table = Table(
        "removed" if clean else "kept",
        "entries",
        "takes",
        "folder",
        box=None,
        pad_edge=False,
    )
    for row in rows.values():
        table.add_row(
            str(row["kind"]),
            str(row["entries"]),
            size(int(str(row["bytes"]))),
            str(row["folder"]),
        )
    console = Console(highlight=False)
    console.print(table)
    with contextlib.suppress(FileNotFoundError):
        console.print(
            f"{size(total)} of {size(bound)} at most (${kept_things.SIZE}), in {kept_things.folder()} "
            f"(${kept_things.SWITCH}) and Inductor's folder",
            soft_wrap=True,
        )
