"""What the overlay adds to ``import torch``.

The overlay's part of ``import torch`` is the entry point: finding our package, loading it, and
activating. It is timed in fresh interpreters, right after torch itself, and compared with the
whole import.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from rich.console import Console
from rich.table import Table

ROUNDS = 7
PROBE = """
import os, time
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
start = time.perf_counter()
import torch
torch_ms = (time.perf_counter() - start) * 1e3
from importlib.metadata import entry_points
(point,) = [p for p in entry_points(group="torch.backends") if p.name == "torchtrt_executorch"]
start = time.perf_counter()
point.load()()
print(torch_ms, (time.perf_counter() - start) * 1e3)
"""


def main() -> None:
    """Print the median of both, in milliseconds."""
    rounds = []
    for _ in range(ROUNDS):
        done = subprocess.run(
            [sys.executable, "-c", PROBE],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "TORCHTRT_EXECUTORCH": "1"},
        )
        rounds.append([float(number) for number in done.stdout.split()])
    torch_ms, overlay_ms = (
        statistics.median(column) for column in zip(*rounds, strict=True)
    )
    table = Table(title=f"import torch, median of {ROUNDS} interpreters")
    for heading in ("part", "ms"):
        table.add_column(heading, justify="right")
    table.add_row("torch alone", f"{torch_ms:.0f}")
    table.add_row("the overlay", f"{overlay_ms:.2f}")
    Console().print(table)
