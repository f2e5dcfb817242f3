"""Two processes lower models at one time that differ in their weights alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ... import fresh
from ...loading import ROOT
from .conftest import needs_compilers, without_gpu

pytestmark = pytest.mark.builds

#: Lowers ``x * weight`` in two processes, each of which waits between what compiles the library and what
#: reads it for the other to be as far. Each prints which it is, and the weight that it finds in its delegate.
LOWER = """
import os, sys, time
from pathlib import Path

import torch
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.exir import to_edge_transform_and_lower
from tests.backends.cuda.conftest import delegates

second = os.fork()
own, other = "12" if second else "21"
compile_library = torch._inductor.aot_compile

def compile_together(*args, **kwargs):
    paths = compile_library(*args, **kwargs)
    Path(own).touch()
    began = time.monotonic()
    while not Path(other).exists() and time.monotonic() < began + 240:
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
found = torch.frombuffer(bytearray(delegate.weights[:4]), dtype=torch.float32).item()
print(own, found, flush=True)
if second:
    _, status = os.waitpid(second, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
"""


@needs_compilers
@without_gpu
def test_each_gets_its_own_library_and_weights(tmp_path: Path) -> None:
    ahead = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(ahead),
        "TORCHTRT_EXECUTORCH_CACHE": "0",
    }
    done = fresh.run(LOWER, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()[-2:]) == ["1 1.0", "2 2.0"]
    assert {each.name for each in tmp_path.iterdir()} == {"1", "2"}
