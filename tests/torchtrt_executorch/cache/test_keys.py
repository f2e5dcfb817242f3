"""Keys: equal where what would be built is, in any process, and different where anything differs."""

from __future__ import annotations

import math
import operator
import os
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir.dialects._ops import ops as exir_ops
from torch._higher_order_ops import triton_kernel_wrap
from torch.export import Dim, ExportedProgram

from torchtrt_executorch.cache import keys
from torchtrt_executorch.cache.keys import key
from torchtrt_executorch.nogpu.target.gpu_description import compiling_for
from torchtrt_executorch.overlay.patch import SKIP


class Model(torch.nn.Module):
    def __init__(self, bias: bool = True, power: float = 2.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4, bias)
        self.register_buffer("shift", torch.zeros(4))
        self.power = power

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) + (
            self.linear(x) + self.shift
        ).pow(self.power)


def exported(
    model: torch.nn.Module | None = None,
    rows: int = 3,
    dtype: Any = None,
    dim: Any = None,
) -> ExportedProgram:
    model = (model or Model()).to(dtype)
    shapes = ({0: dim},) if dim else None
    x = torch.ones(rows, 4, dtype=dtype)
    return torch.export.export(model.eval(), (x,), dynamic_shapes=shapes)


def changed(name: str) -> ExportedProgram:
    program = exported()
    with torch.no_grad():
        program.state_dict[name].view(-1)[-1] += 1
    return program


PROGRAMS = {
    "the same": lambda: exported(),
    "a weight": lambda: changed("linear.weight"),
    "a buffer": lambda: changed("shift"),
    "no bias": lambda: exported(Model(bias=False)),
    "a literal": lambda: exported(Model(power=3.0)),
    "its type": lambda: exported(Model(power=2)),
    "a shape": lambda: exported(rows=5),
    "a dtype": lambda: exported(dtype=torch.float64),
    "dynamic": lambda: exported(dim=Dim("rows", min=2, max=8)),
    "its bounds": lambda: exported(dim=Dim("rows", min=2, max=9)),
}


def test_every_difference_counts() -> None:
    found = {name: key(make()) for name, make in PROGRAMS.items()}
    assert None not in found.values()
    assert len(set(found.values())) == len(PROGRAMS)
    assert found["the same"] == key(exported())


VALUES: list[Any] = [
    [1, 2], [12], ["1", 2], [[1], 2], [1, [2]], [1.0, 2], [True, 2], {1: 2}, {"1": 2},
    {1, 2}, None, "None", b"1", torch.float16, "torch.float16", torch.device("cuda", 1),
    torch.device("cpu"), torch.zeros(2), torch.zeros(2, dtype=torch.int32), torch.zeros(1, 2),
    torch.zeros(2, 1).t(), torch.zeros(2, device="meta"), torch.tensor([0.0, -0.0]),
    torch.ops.aten.add.Tensor, torch.ops.aten.add.Scalar,
    exir_ops.edge.aten.add.Tensor, operator.add, operator.mul, math.sin, slice(1, 2),
]  # fmt: skip


def test_no_two_values_are_one() -> None:
    found = [key(value) for value in VALUES]
    assert None not in found and len(set(found)) == len(found)
    assert key([1], [2]) != key([1, 2], [])


class Wrapper(torch.Tensor):
    pass


class Unknown:
    pass


def own(x: torch.Tensor) -> torch.Tensor:
    return x


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(2).as_subclass(Wrapper),
        torch.zeros(2).to_sparse(),
        Unknown(),
        own,
        lambda x: x,
        triton_kernel_wrap.triton_kernel_wrapper_mutation,
        [{"deep": Unknown()}],
    ],
    ids=["subclass", "sparse", "object", "function", "lambda", "triton", "deep"],
)
def test_what_is_not_known_has_none(value: Any) -> None:
    assert key(value) is None


def test_who_builds_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key("a")
    for name, other in (
        ("TORCHTRT_GPU", "sm_75:8GiB"),
        ("TORCHINDUCTOR_MAX_AUTOTUNE", "1"),
        ("CXX", "another"),
    ):
        with monkeypatch.context() as context:
            context.setenv(name, other)
            assert key("a") != before, name
    for name in ("installed", "patches", "machine", "gpu"):
        with monkeypatch.context() as context:
            context.setattr(keys, name, lambda: ["another"])
            assert key("a") != before, name
    with torch._inductor.config.patch(max_autotune=True):
        assert key("a") != before
    with compiling_for([("a partitioner", "sm_75:8GiB")]):
        assert key("a") != before
    monkeypatch.setenv("TORCHTRT_EXECUTORCH_CACHE", "/elsewhere")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    assert key("a") == before


def test_what_a_compilation_leaves_does_not_count() -> None:
    """Else the second delegate of a program is found by those alone that compile the first one."""
    from torch._inductor import config

    x = torch.ones(2)
    before = key(x)
    # Not by monkeypatch, which leaves Inductor's configuration without what it has set.
    with config.patch({"aot_inductor.metadata": {"AOTI_MACHINE": "x86_64"}}):
        assert key(x) == before
    with config.patch(max_autotune=not config.max_autotune):
        assert key(x) != before


def test_what_building_another_engine_leaves_does_not_count() -> None:
    """Upstream takes the modules from a node's name while it builds: those of what comes next, too."""
    from torch_tensorrt.dynamo.conversion.converter_utils import get_node_name

    def key_of(named: int | None) -> str | None:
        graph_module = exported(torch.nn.Sequential(torch.nn.ReLU())).module()
        nodes = [*graph_module.graph.nodes]
        ops = "placeholder", "call_function"
        both = [next(node for node in nodes if node.op == op) for op in ops]
        for node in both:
            node.meta["nn_module_stack"] = {"L": ("", "Sequential"), "L0": ("0", "R")}
        if named is not None:
            get_node_name(both[named])
            assert len(both[named].meta["nn_module_stack"]) == 1
        return key(graph_module)

    neither = key_of(None)
    assert neither is not None
    assert key_of(0) == neither and key_of(1) != neither


def test_all_that_builds_is_asked() -> None:
    """This distribution by its sources: two of one version may differ."""
    from ...without_torch_tensorrt import reason  # likewise

    installed = keys.installed()
    assert {"torch", "executorch", "python", "ours"} <= installed.keys()
    assert any(name.startswith("tensorrt") for name in installed) or reason()


def test_another_process_finds_the_same(tmp_path: Path) -> None:
    """With other hashes of strings, which is what sets are ordered by, and in another folder."""
    from ... import fresh  # which this file, run by itself, couldn't import

    code = (
        "import sys, runpy; from torchtrt_executorch.cache.keys import key\n"
        f"state = runpy.run_path({__file__!r})\n"
        "print(key(state['exported'](), {'a', 'b', 'c'}, frozenset('xyz')))"
    )
    code = f"import torch\n{code}"
    found = []
    for own, folder in (
        ({"PYTHONHASHSEED": "1"}, Path(__file__).parent),
        ({}, tmp_path),
        ({SKIP: "cuda-quantized-weights"}, Path(__file__).parent),
    ):
        done = fresh.run(code, env={**os.environ, **own}, cwd=folder)
        found.append(done.stdout.splitlines()[-1])
    assert found[0] == found[1] != "None"
    assert found[0] != found[2] != "None"  # another patch is left out


def test_where_modules_are_in_memory_does_not_count() -> None:
    """Traced by Dynamo, as language models are, a node names the modules around it by their addresses."""
    nested = [torch.nn.Sequential(Model()) for _ in range(2)]
    x = torch.ones(3, 4)
    programs = [torch.export.export(each, (x,), strict=True) for each in nested]
    first, second = (
        [str(n.meta.get("nn_module_stack")) for n in each.graph.nodes]
        for each in programs
    )
    assert first != second
    assert key(programs[0]) == key(programs[1]) is not None


def test_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = types.SimpleNamespace(name="NVIDIA H200", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert "NVIDIA H200" in keys.gpu()[0]
