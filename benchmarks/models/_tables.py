"""Tables of what became of the networks, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.models._doors import DOORS, PLAIN

Row = dict[str, Any]
Cells = Sequence[str]

#: Steps before there is a program to be lowered.
_BEFORE = ("eager", "export", "quantize")


def summary(row: Row) -> str:
    """Return what became of a network by a door, in a line."""
    if "error" in row:
        return str(row["error"])
    words = [f"off by {row['difference']:.1e} in {row['seconds']} s"]
    if "loss" in row:
        words.append(f"{row['loss']:.1e} lost")
    if "truth" in row:
        words.append(row["truth"])
    return ("wrong: " if row["wrong"] else "") + ", ".join(words)


def print_tables(rows: Sequence[Row]) -> None:
    """Print how many rows each door has, the networks, what quantization loses, the slowest, and the failures."""
    console = Console(width=150)
    for title, headings, lines in _tables(rows):
        table = Table(title=title)
        for heading in headings:
            table.add_column(heading)
        for line in lines:
            table.add_row(*line)
        console.print(table, markup=False)


def markdown(rows: Sequence[Row]) -> str:
    """Return the tables as a page has them."""
    parts = []
    for title, headings, lines in _tables(rows):
        whole = [headings, ["---"] * len(headings), *lines]
        body = "\n".join(
            f"| {' | '.join(cell.replace('|', '/') for cell in line)} |"
            for line in whole
        )
        parts.append(f"## {title}\n\n{body}\n")
    return "\n".join(parts)


def _tables(rows: Sequence[Row]) -> Iterator[tuple[str, Cells, list[Cells]]]:
    doors = [door for door in DOORS if any(row["door"] == door for row in rows)]
    yield (
        "By door",
        ("door", "tried", "exported", "lowered", "run", "wrong"),
        [_counts(door, rows) for door in doors],
    )
    plain = [door for door in doors if door in PLAIN]
    yield "Networks", ("family", "network", *plain), list(_networks(rows, plain))
    yield (
        "Quantized",
        ("network", "door", "KiB", "lost", "says"),
        [
            (
                row["network"],
                row["door"],
                str(round(row["bytes"] / 1024)),
                f"{row['loss']:.1%}" if "loss" in row else "",
                row.get("truth", ""),
            )
            for row in rows
            if "difference" in row and ("loss" in row or "truth" in row)
        ],
    )
    lowered = [row for row in rows if "seconds" in row]
    slowest = sorted(lowered, key=lambda row: -float(row["seconds"]))[:10]
    yield (
        "The slowest to lower",
        ("network", "door", "seconds"),
        [(row["network"], row["door"], str(row["seconds"])) for row in slowest],
    )
    yield (
        "Not run",
        ("network", "door", "why"),
        [(row["network"], row["door"], row["error"]) for row in rows if "error" in row],
    )


def _counts(door: str, rows: Sequence[Row]) -> Cells:
    tried = [row for row in rows if row["door"] == door]
    counts = (
        len(tried),
        sum(_step(row) not in _BEFORE for row in tried),
        sum("seconds" in row for row in tried),
        sum("difference" in row for row in tried),
        sum(row.get("wrong", False) for row in tried),
    )
    return (door, *map(str, counts))


def _networks(rows: Sequence[Row], doors: Sequence[str]) -> Iterator[Cells]:
    found = {(row["network"], row["door"]): row for row in rows}
    families = {row["network"]: row["family"] for row in rows}
    for network, family in families.items():
        cells = (_cell(found.get((network, door))) for door in doors)
        yield (family, network, *cells)


def _cell(row: Row | None) -> str:
    """Return delegates, host operators of a call, difference and seconds, or the step that failed."""
    if row is None:
        return ""
    if "error" in row:
        return f"no: {_step(row)}"
    delegates = (
        f"{count} {name.removesuffix('Backend')}"
        for name, count in sorted(row["delegates"].items())
    )
    host = sum(
        count for name, count in row["host"].items() if not name.startswith("et_copy")
    )
    words = (
        ", ".join(delegates) or "no delegate",
        f"{host} on the host",
        f"{row['difference']:.0e}",
        f"{row['seconds']:.0f} s",
    )
    return ("wrong: " if row["wrong"] else "") + "; ".join(words)


def _step(row: Row) -> str:
    return str(row.get("error", "")).partition(":")[0]
