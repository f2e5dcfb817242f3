"""What functions remember of the device: none that a scope doesn't know of asks for it."""

from __future__ import annotations

import json
import os

import pytest

from ... import fresh
from .conftest import needs_compilers, without_gpu

pytestmark = pytest.mark.builds

#: Compiles a delegate in a fresh process, and prints every remembering function (functools.cache)
#: that was on the stack while the device was asked for, and that the scope left to upstream.
ASKED = """
import functools, gc, json, sys
import torch
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.exir import to_edge_transform_and_lower
from torchtrt_executorch.nogpu.inductor import target_device as described

stacks = set()

def noting(override):
    def note(*args, **kwargs):
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != "preprocess_for_target":
            stacks.add(frame.f_code)
            frame = frame.f_back
        return override(*args, **kwargs)
    return note

for name in ("_torch_cuda", "_device_interface", "_triton"):
    overrides = getattr(described, name)
    noted = lambda gpu, overrides=overrides: {k: noting(v) for k, v in overrides(gpu).items()}
    setattr(described, name, noted)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.linear = torch.nn.Conv2d(4, 8, 3), torch.nn.Linear(8, 8)
    def forward(self, x):
        x = self.conv(x).mean((2, 3))
        return torch.softmax(self.linear(x), -1).cumsum(0)

specs = [CudaBackend.generate_method_name_compile_spec("forward")]
program = torch.export.export(Model().eval(), (torch.randn(2, 4, 9, 9),))
to_edge_transform_and_lower(program, partitioner=[CudaPartitioner(specs)])

kind = type(functools.cache(len))
gc.unfreeze()  # or what was there when this process was forked is left out
remembering = [value for value in gc.get_objects() if isinstance(value, kind)]
asked = [f"{f.__module__}:{f.__qualname__}" for f in remembering
         if getattr(f.__wrapped__, "__code__", None) in stacks and f.cache_info().currsize]
print(json.dumps(sorted(set(asked))))
"""


@needs_compilers
@without_gpu
def test_no_other_function_remembers_the_described_device() -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = fresh.run(ASKED, env=env, once=False)  # or what remembers is the tests' own
    assert done.returncode == 0, done.stderr
    asked = set(json.loads(done.stdout.splitlines()[-1]))
    # A warning that is given once, and answers nothing.
    asked.discard("torch._inductor.compile_fx:_warn_tf32_disabled")
    # A header, by the command that compiles it: torch 2.15 asks the interface for other options, and CUDA's has none.
    asked.discard("torch._inductor.codecache:_precompile_header")
    assert not asked
