"""What the demo tells while it works, and at the end."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from executorch.exir import EdgeProgramManager
from rich.console import Console
from rich.table import Table

from torchtrt_executorch import report
from torchtrt_executorch.runtime import Stats

#: What the tables call the backends; others go by their own names.
NAMES = {
    "TensorRTBackend": "TensorRT",
    "CudaBackend": "CUDA",
    "XnnpackBackend": "XNNPACK",
    "host": "CPU kernels",
}
CPU = NAMES["host"]


class Report:
    """Progress, then tables: operators per backend, reasons, differences from eager, copies."""

    def __init__(self, emulated: bool) -> None:
        self.emulated = emulated
        self.counts: dict[str, Counter[str]] = {}
        self.reasons: dict[str, Counter[tuple[str, str]]] = {}
        self.differences: dict[str, float] = {}
        self._console = Console(file=sys.stdout)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Show that ``text`` is being done, and then how long it took."""
        start = time.perf_counter()
        with self._console.status(f"{text} ..."):
            yield
        took = time.perf_counter() - start
        self._console.print(f"{text} [dim]{took:.1f} s[/]", highlight=False)

    def operators(self, routing: str, edge: EdgeProgramManager) -> None:
        """Count the operators of a program that was lowered with ``routing``."""
        (method,) = report(edge).methods.values()
        self.counts[routing] = Counter({"TensorRT": 0, CPU: 0})
        self.reasons[routing] = Counter()
        for each in method.operators:
            name = NAMES.get(each.backend, each.backend)
            self.counts[routing][name] += each.count
            if name != "TensorRT":
                self.reasons[routing][each.name, each.reason] += each.count

    def show(self, output: Path, plain: Stats, simulated: Stats, found: int) -> None:
        """Print the tables. ``found`` is how many objects there are in the photograph."""
        routings = [f"by {routing}" for routing in self.counts]
        self._table("Operators", ["backend", *routings], self._backends())
        self._table("Not in TensorRT", ["operator", "why", *routings], self._left_out())
        self._table(
            f"{output}, {output.stat().st_size / 1024:.0f} KiB",
            ["run", "largest difference from eager"],
            [[what, f"{largest:.2g}"] for what, largest in self.differences.items()],
        )
        runs = [_totals(plain), _totals(simulated)]
        self._table(
            "What one run of it did",
            ["", "plain", "simulated devices"],
            [
                [what, *(run.get(what, "0") for run in runs)]
                for what in runs[0] | runs[1]
            ],
        )
        self._console.print(f"{found} objects found, with random weights.")
        for built_by, count in Counter(plain.payloads.values()).items():
            what = "CUDA libraries" if built_by.startswith("AOTI") else "engines"
            self._console.print(
                f"{count} {what} in it, by {built_by}.", highlight=False
            )
        if self.emulated:
            self._console.print(
                "[yellow]TensorRT's engines are EMULATED: PyTorch ran their operators.[/]"
            )
        if plain.stand_ins:
            self._console.print(
                f"[yellow]This machine can't run {', '.join(sorted(plain.stand_ins))}: their "
                "partitions stood in for them, in PyTorch.[/]"
            )

    def _backends(self) -> list[list[str]]:
        names = dict.fromkeys(name for c in self.counts.values() for name in c)
        ordered = sorted(names, key=lambda name: (name == CPU, name != "TensorRT"))
        return [[n, *(str(c[n]) for c in self.counts.values())] for n in ordered]

    def _left_out(self) -> list[list[str]]:
        keys = {key for c in self.reasons.values() for key in c}
        ordered = sorted(keys, key=lambda key: (key[1] != "output allocator", key))
        return [[*k, *(str(c[k]) for c in self.reasons.values())] for k in ordered]

    def _table(
        self, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]
    ) -> None:
        table = Table(title=title, title_justify="left")
        for index, heading in enumerate(headings):
            number = rows and rows[0][index][:1].isdigit()
            table.add_column(heading, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        self._console.print()
        self._console.print(table)


def _totals(stats: Stats) -> dict[str, str]:
    copies = {
        f"copies {direction.replace('_', ' ')}": f"{traffic.copies}, {traffic.nbytes} bytes"
        for direction, traffic in stats.copies.items()
    }
    staged = {
        f"staged by {engine}": f"{staging.inputs.nbytes + staging.outputs.nbytes} bytes"
        for engine, staging in stats.staged.items()
    }
    return {
        **{f"calls of {name}": str(n) for name, n in stats.delegates.items()},
        "calls of kernels": str(sum(stats.kernels.values())),
        **copies,
        **(staged or {"staged by engines": "nothing"}),
    }
