"""A ``.pte`` with ``.ptd`` files of gigabytes: seconds and memory of `inspect`, and of a load.

``python -m benchmarks large_files [--gigabytes 1 4 16] [--folder DIR]``: a program of as many matmuls as hold that many
bytes, written from weights in files with holes. It is looked at, and run, in a process of its own each.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower

WIDTH = 8_192  # 256 MiB of float32

_INSPECT = "from torchtrt_executorch.inspection import read; read({path!r})"
_LOAD = (
    "import torch; from torchtrt_executorch.runtime import load; "
    "load({path!r}).run(torch.ones(1, {width}))"
)
_MEASURE = """
import time
start = time.perf_counter()
import torch, executorch.exir, torchtrt_executorch.inspection, torchtrt_executorch.runtime
def rows():
    lines = (line.split() for line in open("/proc/self/status"))
    return {{w[0][:-1]: int(w[1]) / 1e6 for w in lines if w[-1] == "kB"}}
before, start = rows(), time.perf_counter()
{what}
after = rows()
print(time.perf_counter() - start, *(after[k] - before[k] for k in ("VmHWM", "RssAnon", "RssFile")))
"""


class _Matmuls(torch.nn.Module):
    def __init__(self, weights: list[torch.Tensor]) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = x @ weight
        return x


def _write(folder: Path, count: int) -> Path:
    """Write a program of ``count`` matmuls; its weights are zeros but for their beginnings."""
    nbytes = 4 * WIDTH * WIDTH
    weights = []
    for index in range(count):
        path = folder / f"{index}.weight"
        with path.open("wb") as file:
            file.write(torch.full((WIDTH,), float(index + 1)).numpy().tobytes())
            file.truncate(nbytes)
        flat = torch.from_file(str(path), shared=False, size=WIDTH * WIDTH)
        weights.append(flat.view(WIDTH, WIDTH))
    program = torch.export.export(_Matmuls(weights), (torch.ones(1, WIDTH),))
    config = ExecutorchBackendConfig(external_constants=True)
    made = to_edge_transform_and_lower(program).to_executorch(config)
    made.save(str(folder / "model.pte"))
    return folder / "model.pte"


def main(arguments: list[str] | None = None) -> None:
    """Print a row for each size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks large_files")
    parser.add_argument("--gigabytes", nargs="+", type=float, default=[0.5, 1, 2])
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args(arguments or [])
    print(
        f"{'weights, GB':>12}{'':>10}{'seconds':>9}{'peak':>8}{'anonymous':>11}{'mapped':>8} GB more"
    )
    for size in given.gigabytes:
        with tempfile.TemporaryDirectory(dir=given.folder) as name:
            count = max(1, round(size * 1e9 / (4 * WIDTH * WIDTH)))
            path = _write(Path(name), count)
            nbytes = sum(each.stat().st_size for each in Path(name).glob("*.ptd"))
            for what, code in (("inspect", _INSPECT), ("load, run", _LOAD)):
                code = code.format(path=str(path), width=WIDTH)
                command = [
                    sys.executable,
                    "-W",
                    "ignore",
                    "-c",
                    _MEASURE.format(what=code),
                ]
                done = subprocess.run(
                    command, capture_output=True, text=True, check=True
                )
                seconds, *memory = map(float, done.stdout.split())
                figures = f"{memory[0]:>8.2f}{memory[1]:>11.2f}{memory[2]:>8.2f}"
                print(
                    f"{nbytes / 1e9:>12.2f}{what:>10}{seconds:>9.2f}{figures}",
                    flush=True,
                )


if __name__ == "__main__":
    main(sys.argv[1:])
