"""``executorch.export`` by recipe: TensorRT, CUDA and XNNPACK, each and all of them."""

from __future__ import annotations

import os
from pathlib import Path

import executorch.export as exporting
import pytest
import torch
from executorch.exir._serialize._program import deserialize_pte_binary

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.runtime import load

from .... import fresh
from ....lowering import Function

X = torch.linspace(-1, 1, 16).reshape(2, 8)


def called(x: torch.Tensor, linear: torch.nn.Module) -> torch.Tensor:
    """An engine, and a linear that is left to others."""
    return linear(x.sin()).relu().cos()


def test_tensorrt_before_another() -> None:
    from executorch.backends.xnnpack.recipes import XNNPackRecipeType
    from torch_tensorrt.executorch.recipes import TensorRTRecipeType

    outside = {"torch.ops.aten.linear.default"}
    settings = {"min_block_size": 1, "torch_executed_ops": outside}
    get_recipe = exporting.ExportRecipe.get_recipe
    recipes = [
        get_recipe(TensorRTRecipeType.ENGINES, compile_settings=settings),
        get_recipe(XNNPackRecipeType.FP32),
    ]
    model = Function(called, torch.nn.Linear(8, 8)).eval()
    recipe = exporting.ExportRecipe.combine(recipes)
    with emulated_engines():
        session = exporting.export(model, [(X,)], recipe)
        program = load(session.get_pte_buffer())
        torch.testing.assert_close(program.run(X)[0], model(X))
    (plan,) = session.get_executorch_program().execution_plan
    engines = ["TensorRTBackend", "XnnpackBackend", "TensorRTBackend"]
    assert [each.id for each in plan.delegates] == engines


#: As a user's script does it: recipes are asked for before Torch-TensorRT is imported by anybody else.
SCRIPT = """
import executorch.export as exporting
import torch
from torch_tensorrt.executorch.recipes import TensorRTRecipeType
from torchtrt_executorch import emulated_engines

model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval(), torch.ones(2, 8)
with torch.no_grad(), emulated_engines():
    recipe = exporting.ExportRecipe.get_recipe(
        TensorRTRecipeType.ENGINES, compile_settings={{"min_block_size": 1}}
    )
    exporting.export(model, [(x,)], recipe).save_to_pte({path!r})
    torch.save(model(x), {values!r})
"""


def test_by_a_script_to_a_file(tmp_path: Path) -> None:
    path, values = str(tmp_path / "model.pte"), str(tmp_path / "values.pt")
    code = SCRIPT.format(path=path, values=values)
    done = fresh.python(code, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-2000:]
    (plan,) = deserialize_pte_binary(Path(path).read_bytes()).program.execution_plan
    assert [each.id for each in plan.delegates] == ["TensorRTBackend"]
    program = load(path, emulated_engines=True)
    torch.testing.assert_close(program.run(torch.ones(2, 8))[0], torch.load(values))


def test_what_others_ask_for() -> None:
    from executorch.backends.cuda.recipes import CudaRecipeProvider, CudaRecipeType
    from torch_tensorrt.executorch import TensorRTPartitioner
    from torch_tensorrt.executorch.recipes import (
        TensorRTRecipeProvider,
        TensorRTRecipeType,
    )

    registry = exporting.recipe_registry
    assert {"cuda", "tensorrt"} <= {*registry.list_backends()}
    for name, kind in (("cuda", CudaRecipeType), ("tensorrt", TensorRTRecipeType)):
        assert list(registry.get_supported_recipes(name)) == list(kind)
        with pytest.raises(TypeError, match="nothing"):
            exporting.ExportRecipe.get_recipe(next(iter(kind)), nothing=1)
    assert CudaRecipeProvider().create_recipe(TensorRTRecipeType.ENGINES) is None
    assert TensorRTRecipeProvider().create_recipe(CudaRecipeType.AOTI) is None
    made = exporting.ExportRecipe.get_recipe(CudaRecipeType.AOTI, method_name="decode")
    (cuda,) = made.lowering_recipe.partitioners
    assert b"decode" in [each.value for each in cuda.delegation_spec.compile_specs]
    made = exporting.ExportRecipe.get_recipe(TensorRTRecipeType.ENGINES)
    assert isinstance(made.lowering_recipe.partitioners[0], TensorRTPartitioner)
