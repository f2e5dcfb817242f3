"""Amends ``executorch.exir.program._program``: engines in, data files out, devices as configured.

Who drives ExecuTorch without :func:`torch_tensorrt.executorch.export` gets the same: programs
that hold TensorRT engines go through ``to_edge`` and ``to_edge_transform_and_lower``
(pytorch/TensorRT#4329), and ``save`` leaves no external weights behind (pytorch/TensorRT#4404).

What a partitioner wants whole stays whole for it beside any other (pytorch/executorch#8781).

Each function belongs to a patch of its own, so what only one of them has is imported there.
"""

from __future__ import annotations

import os
import sys
from inspect import signature
from types import ModuleType
from typing import Any, Callable, Mapping

from torch.export import ExportedProgram

from torchtrt_executorch.files import check_writable, staged, write_program
from torchtrt_executorch.overlay import warn
from torchtrt_executorch.overlay.wrapping import undecorated, wrapped


def apply(module: ModuleType) -> None:
    """Wrap the two ways into ExecuTorch, and the two ways out of it."""
    manager = module.ExecutorchProgramManager
    vars(module).update(
        serialize_for_executorch=wrapped(module.serialize_for_executorch, _serialize),
        to_edge=wrapped(module.to_edge, _lower, like=undecorated(module.to_edge)),
        to_edge_transform_and_lower=wrapped(
            module.to_edge_transform_and_lower,
            _lower,
            like=undecorated(module.to_edge_transform_and_lower),
        ),
    )
    manager.save = wrapped(manager.save, _save)


def apply_to_partitioners(module: ModuleType) -> None:
    """Have a method's partitioners asked together what stays whole, and check what came of it."""
    lower = module.to_edge_transform_and_lower
    vars(module).update(
        _gen_edge_manager_for_partitioners=wrapped(
            module._gen_edge_manager_for_partitioners, _asked_together
        ),
        _sanity_check_graph_for_non_decomp_ops=_checked_once_lowered,
        to_edge_transform_and_lower=wrapped(
            lower, _lower_and_check, like=undecorated(lower)
        ),
    )


def apply_to_passes(module: ModuleType) -> None:
    """Hand ``PropagateDeviceConfig.shared_stream`` on to the pass; say what will not run."""
    module.edge_to_executorch_passes = wrapped(  # type: ignore[attr-defined]
        module.edge_to_executorch_passes, _configure
    )


def _configure(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from executorch.exir.passes.propagate_device_pass import PropagateDevicePass

    passes = function(*args, **kwargs)
    given = signature(function).bind(*args, **kwargs).arguments
    config, name = given["config"], given.get("name")

    def of_method(field: str) -> Any:
        value = getattr(config, field, None)  # 1.3 has no propagate_device_config
        return value.get(name) if isinstance(value, dict) else value

    devices = of_method("propagate_device_config")
    for each in passes:
        if isinstance(each, PropagateDevicePass):
            each.set_shared_stream(getattr(devices, "shared_stream", False))
    if getattr(devices, "skip_h2d_for_method_inputs", False) and getattr(
        of_method("memory_planning_pass"), "alloc_graph_input", False
    ):
        warn(
            f"method {name or 'forward'} has skip_h2d_for_method_inputs, and its inputs are "
            "planned: ExecuTorch's C++ runtime would copy the caller's device tensors as if they "
            "were the host's, and crash; give ExecutorchBackendConfig a "
            "MemoryPlanningPass(alloc_graph_input=False)"
        )
    return passes


def _lower(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if "programs" in kwargs:
        kwargs["programs"] = _traceable(kwargs["programs"])
    elif args:
        args = (_traceable(args[0]), *args[1:])
    return function(*args, **kwargs)


def _traceable(programs: Any) -> Any:
    """Return the program, or each of a dict's, in a form that ExecuTorch's passes can trace."""
    if isinstance(programs, dict):
        return {name: _traceable(program) for name, program in programs.items()}
    if not isinstance(programs, ExportedProgram):
        return programs  # upstream's to complain about
    from executorch.exir._data_dependent import forget_unclaimed_symbols

    forget_unclaimed_symbols(programs)
    if "torch_tensorrt" not in sys.modules:
        return programs  # nobody can have compiled an engine
    from torch_tensorrt.executorch._engine_placeholders import (
        with_engine_placeholders,
    )

    return with_engine_placeholders(programs)


def _asked_together(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from executorch.exir.program._whole_operators import (
        AllPartitioners,
    )

    call = signature(function).bind(*args, **kwargs)
    call.arguments["partitioner"] = {
        method: [AllPartitioners(several)] if len(several) > 1 else several
        for method, several in call.arguments["partitioner"].items()
    }
    return function(*call.args, **call.kwargs)


def _checked_once_lowered(*args: Any, **kwargs: Any) -> None:
    """Check nothing, in the place of upstream's check: :func:`_lower_and_check` does."""


def _lower_and_check(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from executorch.exir.program._whole_operators import (
        check_nothing_left,
    )

    edge = function(*args, **kwargs)
    call = signature(undecorated(function)).bind(*args, **kwargs)
    given = call.arguments.get("partitioner")
    for method in edge.methods:
        partitioners = given.get(method) if isinstance(given, Mapping) else given
        check_nothing_left(edge.exported_program(method), partitioners or (), method)
    return edge


def _serialize(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from executorch.exir.program._external_data import with_expected_data

    call = signature(function).bind(*args, **kwargs)
    call.arguments["named_data_store"] = with_expected_data(
        call.arguments["emitter_output"],
        call.arguments.get("named_data_store"),
        trained_on=call.arguments["config"].external_mutable_weights,
    )
    return function(*call.args, **call.kwargs)


def _save(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    def save(manager: Any, path: str | os.PathLike[str]) -> None:
        target = check_writable(path)
        if target.suffix != ".pte":
            raise ValueError(
                f"can't save to {target}: an ExecuTorch program's file ends in .pte"
            )
        with staged(target) as folder:
            write_program(manager, folder / target.name)

    save(*args, **kwargs)
