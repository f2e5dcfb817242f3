"""What `inspect` finds in the benchmarks' programs, and how long a page of a long one takes."""

from __future__ import annotations

import time
from collections import Counter

from executorch.exir import ExecutorchBackendConfig
from executorch.exir._serialize._program import (
    deserialize_pte_binary,
    serialize_pte_binary,
)
from rich.console import Console
from rich.table import Table

from benchmarks.propagate_device_pass import scenarios
from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.advice import advise
from torchtrt_executorch.inspection.drawing.page import page

LENGTHS = (100, 1_000, 10_000)


def repeated(program: bytes, count: int) -> bytes:
    """Return a program with its instructions over and over, ``count`` in all."""
    file = deserialize_pte_binary(program)
    (chain,) = file.program.execution_plan[0].chains
    times = -(-count // len(chain.instructions))
    chain.instructions = (chain.instructions * times)[:count]
    return bytes(serialize_pte_binary(file))


def main() -> None:
    """Print findings by program and kind, then seconds and bytes of pages by length."""
    findings = Table("program", "device memory", "findings", title="Findings")
    program = b""
    for scenario in scenarios():
        for planned in (False, True):
            config = ExecutorchBackendConfig(enable_non_cpu_memory_planning=planned)
            program = bytes(scenario.edge().to_executorch(config).buffer)
            found = Counter(each.name for each in advise(read(program)))
            said = ", ".join(f"{n} {name}" for name, n in found.items()) or "none"
            findings.add_row(scenario.name, "planned" if planned else "host", said)
    pages = Table("instructions", "read, s", "page, s", "page, MB", title="Pages")
    for length in LENGTHS:
        data = repeated(program, length)
        start = time.perf_counter()
        facts = read(data)
        middle = time.perf_counter()
        made = page(facts, advise(facts))
        end = time.perf_counter()
        row = f"{middle - start:.2f}", f"{end - middle:.2f}", f"{len(made) / 1e6:.2f}"
        pages.add_row(f"{length:,}", *row)
    Console().print(findings, pages)


if __name__ == "__main__":
    main()
