"""Prints what of the overlay is in force in this process; run by the tests, as a script.

``IMPORTS`` in the environment is executed first: what the process imports, and in which order.
"""

import importlib
import importlib.util
import inspect
import json
import os


def served() -> dict[str, bool]:
    """Return per replaced or added module whether it is ours that its importers get."""
    from torchtrt_executorch.overlay.manifest import PATCHES
    from torchtrt_executorch.overlay.patch import State, verdict_on
    from torchtrt_executorch.overlay.served import our_spec

    return {
        name: importlib.import_module(name).__file__ == our_spec(name).origin
        for patch in PATCHES
        if verdict_on(patch).state is State.IN_FORCE
        for name in (*patch.replaces, *patch.adds)
    }


def amended() -> dict[str, bool]:
    """Return per amended upstream object whether ours is what its importers get."""
    import executorch.exir as exir
    import torch_tensorrt as tt
    from torch_tensorrt.dynamo.conversion import _conversion

    def is_wrapped(function: object) -> bool:
        code = getattr(function, "__code__", None)
        return code is not None and "torchtrt_executorch" in code.co_filename

    engines = {}
    if importlib.util.find_spec("torch_tensorrt.dynamo.runtime._TRTEngine"):
        from torch_tensorrt.dynamo.runtime import _TorchTensorRTModule, _TRTEngine

        module = _TorchTensorRTModule.TorchTensorRTModule
        engines = {
            "TRTEngine.execute": is_wrapped(_TRTEngine.TRTEngine.execute),
            "TorchTensorRTModule.forward": is_wrapped(module.forward),
        }
    settings = tt.dynamo.CompilationSettings
    return {
        "dynamo.CompilationSettings": hasattr(settings(), "target_executorch"),
        "compile": "target_executorch" in inspect.signature(tt.compile).parameters,
        "dynamo.compile": is_wrapped(tt.dynamo.compile),
        "save": is_wrapped(tt.save),
        "executorch.export": callable(getattr(tt.executorch, "export", None)),
        "interpret_module_to_result": is_wrapped(
            _conversion.interpret_module_to_result
        ),
        **engines,
        "to_edge": is_wrapped(exir.to_edge),
        "to_edge_transform_and_lower": is_wrapped(exir.to_edge_transform_and_lower),
        "ExecutorchProgramManager.save": is_wrapped(exir.ExecutorchProgramManager.save),
    }


if __name__ == "__main__":
    exec(os.environ["IMPORTS"])
    print(json.dumps({"served": served(), "amended": amended()}))
