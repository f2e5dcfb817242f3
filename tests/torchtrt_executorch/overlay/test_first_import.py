"""A module of upstream that is imported before torch is executing when the overlay comes: it is edited all the same."""

from __future__ import annotations

import re

import pytest

from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.upstream import locate

FIRST = (
    "executorch.backends.cuda.cuda_backend",
    "executorch.backends.cuda.cuda_partitioner",
    "executorch.backends.aoti.aoti_backend",
    "executorch.backends.aoti.passes.replace_view_copy_with_view",
    "executorch.backends.cuda.passes.replace_int64_floordiv",
    "executorch.exir",
    "torch_tensorrt",
    "transformers.exporters.exporter_executorch",
)

#: Lowers a program up to where Inductor compiles it, and prints what Inductor is given.
LOWER = """
import FIRST
import json, re
import torch
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.backends.cuda.support.dry_run import SupportCheck
from executorch.exir import to_edge_transform_and_lower
from torchtrt_executorch import overlay

class Model(torch.nn.Module):
    def forward(self, x):
        query, key = x.split(2, dim=-1)
        halves = torch.cond(
            x.sum() > 0, lambda q, k: q // 2 + k, lambda q, k: q.detach() - 1 + k, (query * 2, key * 2)
        )
        return halves + query

given = []

def compile_nothing(module, inputs, options):
    code = module.print_readable(print_output=False)
    given.append(re.sub("#.*", "", code))  # numbers of files
    raise NotImplementedError("nothing is compiled here")

def support_all(self, nodes, *others):
    given.append(sorted(node.name for node in nodes))
    return {}

torch._inductor.aot_compile = compile_nothing
SupportCheck.unsupported = support_all
method = CudaBackend.generate_method_name_compile_spec("forward")
errors = []
for gpu in (b"sm_90:80GiB", b"H100"):
    try:
        spec = type(method)("gpu", gpu)
        program = torch.export.export(Model(), (torch.arange(16).reshape(4, 4),))
        to_edge_transform_and_lower(program, partitioner=[CudaPartitioner([method, spec])])
    except (NotImplementedError, ValueError) as error:
        errors.append(str(error))
statuses = {name: each.state.value for name, each in overlay.statuses().items()}
print(json.dumps([given, errors, statuses]))
"""


@pytest.fixture(scope="module")
def usual(run) -> list:
    process = run(LOWER.replace("FIRST", "torch"), alone=True)
    assert not process.warnings
    graphs, errors, statuses = process.facts
    assert "cond" in graphs[-2]  # the support check's, and Inductor's
    for name in ("slice.Tensor", "floor.default"):  # printed as the dialect has them
        assert re.search(f"aten[._]{name.replace('.', '[._]')}", graphs[-1])
    assert "split" not in graphs[-1] and "detach_copy" not in graphs[-1]
    assert errors[0] == "nothing is compiled here" and "H100" in errors[1]
    assert statuses["cuda-operators"] == "in force"
    return process.facts


@pytest.mark.parametrize(
    "first",
    [
        FIRST[0],
        *(pytest.param(name, marks=pytest.mark.slow) for name in FIRST[1:]),
    ],
)
def test_a_module_that_imports_torch_is_edited(run, usual: list, first: str) -> None:
    if locate(first) is None:
        pytest.skip(f"{first.partition('.')[0]} is not installed")
    process = run(LOWER.replace("FIRST", first), alone=True)
    assert process.facts == usual
    assert not process.warnings


def test_each_first_import_is_of_an_edited_package() -> None:
    changed = {name for patch in PATCHES for name in patch.modules}
    for name in FIRST:
        assert any(f"{each}.".startswith(f"{name}.") for each in changed), name
