"""Amends ``executorch.exir.program._program``: engines go in.

Who drives ExecuTorch without :func:`torch_tensorrt.executorch.export` gets the same: programs that
hold TensorRT engines go through ``to_edge`` and ``to_edge_transform_and_lower`` (pytorch/TensorRT#4329).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Callable

from torch.export import ExportedProgram

from torchtrt_executorch.host.described_gpu import chosen
from torchtrt_executorch.inspection.gpus import engine_runs_on
from torchtrt_executorch.overlay.wrapping import undecorated, wrapped
from torchtrt_executorch.progress import as_step

#: The device in the record of an engine that was built without one.
_DESCRIBED = re.compile(r"described (?P<gpu>sm_\d+)(, built for (?P<several>.+))?")


def apply(module: ModuleType) -> None:
    """Wrap the two ways into ExecuTorch, and the way on."""
    edge = module.EdgeProgramManager
    lower = module.to_edge_transform_and_lower
    vars(module).update(
        to_edge=wrapped(module.to_edge, _lower, like=undecorated(module.to_edge)),
        to_edge_transform_and_lower=wrapped(
            wrapped(
                lower,
                as_step("ExecuTorch: to_edge_transform_and_lower"),
                like=undecorated(lower),
            ),
            _lower,
        ),
    )
    finish = edge.to_executorch
    edge.to_executorch = wrapped(
        wrapped(finish, as_step("ExecuTorch: to_executorch"), like=undecorated(finish)),
        _bounded,
    )


def _bounded(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Name the operator whose result has no largest size, and say where to put one."""
    from executorch.exir._data_dependent import first_unbounded

    try:
        return function(*args, **kwargs)
    except Exception as error:
        if "upper bound" not in str(error):  # executorch 1.3 words it differently
            raise
        manager = args[0]
        for method in manager.methods:
            if node := first_unbounded(manager.exported_program(method)):
                raise RuntimeError(
                    f"{method}: ExecuTorch plans memory for the largest result, and that of {node} "
                    f"({node.target}) has no bound: say it in the model, after the operator, with "
                    "torch._check(result.shape[0] <= n)"
                ) from error
        raise
    finally:
        _forget_delegates()


def _lower(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    given = kwargs.get("programs", args[0] if args else None)
    if "programs" in kwargs:
        kwargs["programs"] = _traceable(given)
    elif args:
        args = (_traceable(given), *args[1:])
    _check_engines(given)
    try:
        return function(*args, **kwargs)
    finally:  # the caller's next pass would trip over those of lowering
        _forget_symbols(given)
        _forget_delegates()


def _forget_delegates() -> None:
    """Have upstream's caches drop what they keep of lowered programs, each with its weights, until the process ends."""
    from executorch.exir.backend import utils
    from executorch.exir.delegate import executorch_call_delegate
    from torch._subclasses.fake_tensor import FakeTensorMode

    utils.is_same_node.cache_clear()
    # By the operator that is called and what it is called with; what other operators return can be used again.
    for key in list(FakeTensorMode.cache):
        if executorch_call_delegate in key.key:
            FakeTensorMode.cache.pop(key, None)


def _forget_symbols(programs: Any) -> None:
    from executorch.exir._data_dependent import forget_unclaimed_symbols

    for program in programs.values() if isinstance(programs, dict) else [programs]:
        if isinstance(program, ExportedProgram):
            forget_unclaimed_symbols(program)


def _traceable(programs: Any) -> Any:
    """Return the program, or each of a dict's, in a form that ExecuTorch's passes can trace."""
    if isinstance(programs, dict):
        return {name: _traceable(program) for name, program in programs.items()}
    if not isinstance(programs, ExportedProgram):
        return programs  # upstream's to complain about
    _forget_symbols(programs)
    if "torch_tensorrt" not in sys.modules:
        return programs  # nobody can have compiled an engine
    from torch_tensorrt.executorch._engine_placeholders import (
        with_engine_placeholders,
    )

    return with_engine_placeholders(programs)


def _check_engines(programs: Any) -> None:
    """Check that engines which were built before run on the target.

    Raises:
        ValueError: One doesn't.
    """
    gpus = chosen()
    if not gpus or "torch_tensorrt" not in sys.modules:
        return
    from torch_tensorrt.executorch._engine_nodes import engine_nodes
    from torch_tensorrt.executorch._engine_record import Slot, text
    from torch_tensorrt.executorch.backend import _get_engine_info_for_node

    for program in programs.values() if isinstance(programs, Mapping) else [programs]:
        if not isinstance(program, ExportedProgram):
            continue
        for node in engine_nodes(program.graph.nodes):
            record = _get_engine_info_for_node(program, node, metadata_only=True)
            if text(record, Slot.HARDWARE_COMPATIBLE) == "1":
                continue
            built_for = _built_for(text(record, Slot.DEVICE))
            for gpu in gpus:
                major, minor = gpu.capability
                if built_for and not engine_runs_on(built_for, major * 10 + minor):
                    raise ValueError(
                        f"the engine {node.name} was built for {', '.join(built_for)}, and doesn't run "
                        f"on the target {gpu.text}: set TORCHTRT_GPU to the target where engines are "
                        "built, or have TensorRTPartitioner(compile_settings=...) build them"
                    )


def _built_for(device: str) -> list[str]:
    """Return the GPUs that an engine runs on, by its record's device; none if it isn't known."""
    fields = device.split("%")
    found = _DESCRIBED.fullmatch(fields[-1])
    if found is None:
        known = len(fields) > 2 and all(each.isdigit() for each in fields[1:3])
        return [f"sm_{fields[1]}{fields[2]}"] if known else []
    if not found["several"]:
        return [found["gpu"]]
    several, later, _ = found["several"].partition(" and later")
    names = several.split(", ")
    return [*names, f"{names[-1]}+"] if later else names
