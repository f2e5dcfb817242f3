"""The compile spec ``modules``: two partitioners of one kind share a model by its modules."""

from __future__ import annotations

import warnings

import pytest
import torch
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend._modules import (
    check_modules,
    outside_of_modules,
    warn_of_unknown_modules,
)
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch import Tensor, nn
from torch.export import ExportedProgram, export

from torchtrt_executorch.inspection import read

from ...lowering import BaseModel

X = torch.randn(4, 8)


class Block(BaseModel, linear=lambda: nn.Linear(8, 8)):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


class Model(nn.Module):
    """Two blocks, one called twice, with operators of the model's own around them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mask = x > 0
        first = self.layers[0](x)
        again = self.layers[0](first)
        offset = x.sin()
        second = self.layers[1](again + offset)
        return self.head(second.neg()), torch.where(mask, first, second).exp()


def program() -> ExportedProgram:
    with torch.no_grad():
        return export(Model().eval(), (X,))


def spec(modules: str) -> list[CompileSpec]:
    return [CompileSpec("modules", modules.encode())]


def inside(modules: str, decomposed: bool = False) -> list[str]:
    """The operators of the modules that are named, in order."""
    exported = program()
    if decomposed:
        exported = exported.run_decompositions()
    outside = outside_of_modules(exported, spec(modules))
    return [
        node.target.__name__.partition(".")[0]
        for node in exported.graph.nodes
        if node.op == "call_function" and node not in outside
    ]


@pytest.mark.parametrize("pattern", ["layers.0", "layer?.0", "lay*0", "layers.[0]"])
def test_a_module_is_named_by_path_or_pattern(pattern: str) -> None:
    """With all of its calls."""
    assert inside(pattern) == ["linear", "relu", "linear", "relu"]


def test_a_name_is_no_beginning_of_another() -> None:
    assert inside("layer") == []


def test_what_is_below_a_module_is_its() -> None:
    assert inside("layers.1") == ["linear", "relu", "neg"]
    assert inside("layers.1.linear") == ["linear", "relu", "neg"]


def test_what_is_computed_of_its_results_alone_goes_along() -> None:
    """The negation stands between the two, and the exponential behind both a block and a mask of others."""
    assert inside("layers.1,head") == ["linear", "relu", "neg", "linear"]


def test_what_is_computed_of_inputs_for_it_alone_goes_along() -> None:
    """The sine does; the sum has one of others' results, and the mask is read by others."""
    assert inside("layers.*,head") == [
        *["linear", "relu"] * 2,
        "sin",
        "add",
        *["linear", "relu", "neg", "linear"],
    ]


@pytest.mark.parametrize("decomposed", [False, True])
def test_all_is_a_pattern_s_that_matches_all(decomposed: bool) -> None:
    """But for what is of no module, and not between those that are."""
    outside = outside_of_modules(program(), spec("*"))
    assert {node.target.__name__ for node in outside} == {
        "gt.Scalar",
        "where.self",
        "exp.default",
    }
    assert "relu" in inside("*", decomposed)


def test_without_the_spec_nothing_is_outside() -> None:
    assert outside_of_modules(program(), []) == []


def test_an_unknown_module_is_warned_of_with_what_is_near() -> None:
    with pytest.warns(UserWarning, match=r"'layer.0'.*did you mean 'layers.0'\?"):
        warn_of_unknown_modules("CudaPartitioner", program(), spec("layer.0"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_unknown_modules("CudaPartitioner", program(), spec("layers.0,head"))


@pytest.mark.parametrize("value", ["", "head,", ",head", "head,,layers.0"])
def test_a_spec_that_names_nothing_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="CudaPartitioner: .*paths of modules"):
        check_modules("CudaPartitioner", spec(value))
    with pytest.raises(ValueError, match="paths of modules"):
        CudaPartitioner(
            [CudaBackend.generate_method_name_compile_spec("forward"), *spec(value)]
        )


def devices_by_delegate(partitioners: list[object]) -> list[str]:
    lowered = to_edge_transform_and_lower(program(), partitioner=partitioners)
    facts = read(bytes(lowered.to_executorch().buffer))
    (method,) = facts.methods
    return [delegate.device for delegate in method.delegates]


def cuda(*specs: CompileSpec) -> CudaPartitioner:
    method = CudaBackend.generate_method_name_compile_spec("forward")
    return CudaPartitioner([method, *specs])


def test_two_cuda_partitioners_share_a_model() -> None:
    second = [CompileSpec("target_device", b"cuda:1"), *spec("layers.1,head")]
    assert devices_by_delegate([cuda(*second), cuda()]) == [
        "cuda:0",
        "cuda:1",
        "cuda:0",
    ]


def test_what_nobody_is_left_for_stays_on_the_host() -> None:
    edge = to_edge_transform_and_lower(program(), partitioner=[cuda(*spec("head"))])
    on_host = [
        n for n in edge.exported_program().graph.nodes if n.op == "call_function"
    ]
    assert sum("addmm" in str(node.target) for node in on_host) == 3
