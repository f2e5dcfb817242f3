"""``executorch.export`` by the CUDA recipe, compiled here and run through stand-ins."""

from __future__ import annotations

import executorch.export as exporting
import torch

from torchtrt_executorch import runtime

from ...lowering import BaseModel
from .conftest import needs_compilers, without_gpu

pytestmark = [needs_compilers, without_gpu]


class Scaled(BaseModel, scale=lambda: torch.nn.Parameter(torch.linspace(1, 2, 8))):
    """One weight, so that there is a ``.ptd`` as well."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() * self.scale


def test_exports_as_the_other_recipes_do() -> None:
    from executorch.backends.cuda.recipes import CudaRecipeType

    model, x = Scaled().eval(), torch.linspace(-1, 1, 16).reshape(2, 8)
    recipe = exporting.ExportRecipe.get_recipe(CudaRecipeType.AOTI)
    with torch.no_grad():
        session = exporting.export(model, [(x,)], recipe)
        built = session.get_executorch_program_manager()
        data = [bytes(weights) for weights in built._tensor_data.values()]
        program = runtime.load(session.get_pte_buffer(), data, simulate_devices=True)
        torch.testing.assert_close(program.run(x)[0], model(x))
    (plan,) = session.get_executorch_program().execution_plan
    assert [each.id for each in plan.delegates] == ["CudaBackend"]
    assert len(program.stats().stand_ins) == 1
