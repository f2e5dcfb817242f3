"""Control flow in CUDA delegates, exported and run on a GPU: what is in the delegate, and how far it is off eager.

    PYTHONPATH=. python tests/gpu/control_flow.py [KIND...]

The models are those of ``tests/backends/cuda/control_flow.py``, with a dynamic length, compiled for the GPU that is there or
that ``TORCHTRT_GPU`` describes; without a GPU stand-ins compute them.
"""

from __future__ import annotations

import argparse
import sys

import torch
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch.export import Dim, export

from tests.backends.cuda.control_flow import INPUTS, KINDS, Model, X
from torchtrt_executorch import runtime

#: A convolution in TF32, as eager mode has it on a GPU, beside one in float32 on the host.
TOLERANCE = 1e-3


def run(kind: str) -> float:
    """Print a row for a model, and return how far it is off."""
    model = Model(KINDS[kind]).eval()
    spec = CudaBackend.generate_method_name_compile_spec("forward")
    with torch.no_grad():
        program = export(model, (X,), dynamic_shapes=({0: Dim("rows", min=2, max=8)},))
        edge = to_edge_transform_and_lower(
            program, partitioner=[CudaPartitioner([spec])]
        )
    calls = edge.exported_program().graph.find_nodes(
        op="call_function", target=torch.ops.higher_order.executorch_call_delegate
    )
    built = edge.to_executorch()
    weights = [bytes(each) for each in built._tensor_data.values()]
    loaded = runtime.load(bytes(built.buffer), weights)
    off = 0.0
    for x in INPUTS:
        with torch.no_grad():
            off = max(off, float((loaded.run(x)[0].cpu() - model(x)).abs().max()))
    print(f"{kind:20} delegates {len(calls)}  off by {off:.1e}", flush=True)
    return off


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=[*KINDS])
    sys.exit(not all([run(kind) <= TOLERANCE for kind in parser.parse_args().kinds]))


if __name__ == "__main__":
    main()
