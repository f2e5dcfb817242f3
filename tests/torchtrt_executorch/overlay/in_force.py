"""Prints what of the overlay is in force in this process; run by the tests, as a script.

``IMPORTS`` in the environment is executed first: what the process imports, and in which order.
"""

import importlib
import importlib.util
import inspect
import json
import os
from pathlib import Path


def served() -> dict[str, bool]:
    """Return per replaced or added module whether it is ours that its importers get."""
    from torchtrt_executorch.overlay.manifest import PATCHES
    from torchtrt_executorch.overlay.patch import State, patch_status
    from torchtrt_executorch.overlay.served import our_spec

    return {
        name: importlib.import_module(name).__file__ == our_spec(name).origin
        for patch in PATCHES
        if patch_status(patch).state is State.IN_FORCE
        for name in (*patch.replaces, *patch.adds)
    }


def amended() -> dict[str, bool]:
    """Return per amended upstream object whether ours is what its importers get."""
    import executorch.exir as exir
    import torch_tensorrt as tt
    from torch_tensorrt.dynamo.conversion import _conversion

    def is_ours(function: object) -> bool:
        """Whether it is a wrapper of ours, or of source that we have edited."""
        path = getattr(getattr(function, "__code__", None), "co_filename", "")
        of_edited = "edited" in Path(path).parts
        return of_edited or "torchtrt_executorch" in path or own_module(path)

    def own_module(path: str) -> bool:
        return Path(path).is_relative_to(Path(__file__).parents[3] / "py")

    engines = {}
    if importlib.util.find_spec("torch_tensorrt.dynamo.runtime._TRTEngine"):
        from torch_tensorrt.dynamo.runtime import _TorchTensorRTModule, _TRTEngine

        module = _TorchTensorRTModule.TorchTensorRTModule
        engines = {
            "TRTEngine.execute": is_ours(_TRTEngine.TRTEngine.execute),
            "TorchTensorRTModule.forward": is_ours(module.forward),
        }
    settings = tt.dynamo.CompilationSettings
    return {
        "dynamo.CompilationSettings": hasattr(settings(), "target_executorch"),
        "compile": "target_executorch"
        in inspect.signature(tt.dynamo.compile).parameters,
        "dynamo.compile": is_ours(tt.dynamo.compile),
        "save": is_ours(tt.save),
        "executorch.export": callable(getattr(tt.executorch, "export", None)),
        "interpret_module_to_result": is_ours(_conversion.interpret_module_to_result),
        **engines,
        "to_edge": is_ours(exir.to_edge),
        "to_edge_transform_and_lower": is_ours(exir.to_edge_transform_and_lower),
        "ExecutorchProgramManager.save": is_ours(exir.ExecutorchProgramManager.save),
    }


if __name__ == "__main__":
    exec(os.environ["IMPORTS"])
    print(json.dumps({"served": served(), "amended": amended()}))
