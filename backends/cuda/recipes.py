"""Register the ``executorch.export`` recipe for ``CudaBackend``.

.. code-block:: python

    from executorch.backends.cuda.recipes import CudaRecipeType
    from executorch.export import ExportRecipe, export

    session = export(model, [inputs], ExportRecipe.get_recipe(CudaRecipeType.AOTI))
"""

from __future__ import annotations

from typing import Any, Sequence

from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.export import (
    BackendRecipeProvider,
    ExportRecipe,
    LoweringRecipe,
    RecipeType,
    recipe_registry,
)


class CudaRecipeType(RecipeType):
    """Recipes for ``CudaBackend``."""

    #: The model in its own types, compiled by AOTInductor.
    AOTI = "cuda_aoti"

    @classmethod
    def get_backend_name(cls) -> str:
        """Return what the registry calls the backend."""
        return "cuda"


class CudaRecipeProvider(BackendRecipeProvider):
    """Makes them."""

    @property
    def backend_name(self) -> str:
        """The backend's name in the registry."""
        return CudaRecipeType.get_backend_name()

    def get_supported_recipes(self) -> Sequence[RecipeType]:
        """Return all of them."""
        return list(CudaRecipeType)

    def create_recipe(
        self, recipe_type: RecipeType, **kwargs: Any
    ) -> ExportRecipe | None:
        """Return a recipe; None for another backend's.

        Args:
            recipe_type: Which one.
            kwargs: ``method_name``, of the method that is exported, "forward" by default;
                ``compile_specs``, more of the backend's.

        Raises:
            TypeError: Another argument.
        """
        if recipe_type not in self.get_supported_recipes():
            return None
        partitioner = _partitioner(**kwargs)
        lowering = LoweringRecipe(partitioners=[partitioner])
        return ExportRecipe(name=recipe_type.value, lowering_recipe=lowering)


def _partitioner(
    method_name: str = "forward", compile_specs: Sequence[CompileSpec] = ()
) -> CudaPartitioner:
    name = CudaBackend.generate_method_name_compile_spec(method_name)
    return CudaPartitioner([name, *compile_specs])


recipe_registry.register_backend_recipe_provider(CudaRecipeProvider())
