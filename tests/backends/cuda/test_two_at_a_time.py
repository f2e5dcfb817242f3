"""Two processes lower models at one time that differ in their weights alone."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests import fresh

from .conftest import needs_compilers

pytestmark = pytest.mark.builds

#: Lowers ``x * weight``, and waits between what compiles the library and what reads it for the other
#: process to be as far. Prints the weight that it finds in its delegate.
LOWER = """
import sys, time
from pathlib import Path

folder, own, other = Path({folder!r}), "{own}", "{other}"

import torch
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.exir import to_edge_transform_and_lower
from tests.backends.cuda.conftest import delegates

compile_library = torch._inductor.aot_compile

def compile_together(*args, **kwargs):
    paths = compile_library(*args, **kwargs)
    (folder / own).touch()
    began = time.monotonic()
    while not (folder / other).exists() and time.monotonic() < began + 240:
        time.sleep(0.05)
    return paths

torch._inductor.aot_compile = compile_together

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((16,), float(own)))

    def forward(self, x):
        return x * self.weight

program = torch.export.export(Scaled(), (torch.ones(4, 16),))
spec = CudaBackend.generate_method_name_compile_spec("forward")
(delegate,) = delegates(
    to_edge_transform_and_lower(program, partitioner=[CudaPartitioner([spec])])
)
print(torch.frombuffer(bytearray(delegate.weights[:4]), dtype=torch.float32).item())
"""


@needs_compilers
@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")
def test_each_gets_its_own_library_and_weights(
    tmp_path: Path,
) -> None:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TORCHTRT_EXECUTORCH_CACHE": "0",
    }

    def lower(own: str, other: str) -> str:
        code = LOWER.format(folder=str(tmp_path), own=own, other=other)
        done = fresh.python(code, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(lower, "12", "21")) == ["1.0", "2.0"]
