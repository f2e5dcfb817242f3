"""Register the ``executorch.export`` recipe for TensorRT.

.. code-block:: python

    from executorch.export import ExportRecipe, export
    from torch_tensorrt.executorch.recipes import TensorRTRecipeType

    recipe = ExportRecipe.get_recipe(TensorRTRecipeType.ENGINES, compile_settings={"min_block_size": 1})
    session = export(model, [inputs], recipe)
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from executorch.export import (
    BackendRecipeProvider,
    ExportRecipe,
    LoweringRecipe,
    RecipeType,
    recipe_registry,
)
from torch_tensorrt.executorch.partitioner import TensorRTPartitioner


class TensorRTRecipeType(RecipeType):
    """Recipes for ``TensorRTBackend``."""

    #: The model in its own types, in engines that are built while it is lowered.
    ENGINES = "tensorrt_engines"

    @classmethod
    def get_backend_name(cls) -> str:
        """Return what the registry calls the backend."""
        return "tensorrt"


class TensorRTRecipeProvider(BackendRecipeProvider):
    """Makes them."""

    @property
    def backend_name(self) -> str:
        """The backend's name in the registry."""
        return TensorRTRecipeType.get_backend_name()

    def get_supported_recipes(self) -> Sequence[RecipeType]:
        """Return all of them."""
        return list(TensorRTRecipeType)

    def create_recipe(
        self, recipe_type: RecipeType, **kwargs: Any
    ) -> ExportRecipe | None:
        """Return a recipe; None for another backend's.

        Args:
            recipe_type: Which one.
            kwargs: Of ``TensorRTPartitioner``: ``compile_settings``, upstream's defaults without;
                ``compile_specs``, ``fail_on_build_error``.

        Raises:
            TypeError: Another argument.
        """
        if recipe_type not in self.get_supported_recipes():
            return None
        settings: Mapping[str, Any] = kwargs.pop("compile_settings", {})
        partitioner = TensorRTPartitioner(compile_settings=settings, **kwargs)
        lowering = LoweringRecipe(partitioners=[partitioner])
        return ExportRecipe(name=recipe_type.value, lowering_recipe=lowering)


recipe_registry.register_backend_recipe_provider(TensorRTRecipeProvider())
