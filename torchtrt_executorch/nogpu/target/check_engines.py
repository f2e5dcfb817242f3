"""Check that the engines of a program run on the GPUs that it is lowered for."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from torchtrt_executorch.nogpu.target.gpu_description import chosen
from torchtrt_executorch.payloads.gpus import engine_runs_on

#: The device in the record of an engine that was built without one.
_DESCRIBED = re.compile(r"described (?P<gpu>sm_\d+)(, built for (?P<several>.+))?")


def check_engines(programs: Any) -> None:
    """Check that engines which were built before run on each target (``TORCHTRT_GPU``).

    Args:
        programs: An ``ExportedProgram``, or a dict of them by method.

    Raises:
        ValueError: One doesn't.
    """
    gpus = chosen()
    if not gpus or "torch_tensorrt" not in sys.modules:
        return
    from torch.export import ExportedProgram
    from torch_tensorrt.executorch.backend import _get_engine_info_for_node
    from torch_tensorrt.executorch.engines.nodes import engine_nodes
    from torch_tensorrt.executorch.engines.record import Slot, text

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
    match = _DESCRIBED.fullmatch(fields[-1])
    if match is None:
        known = len(fields) > 2 and all(field.isdigit() for field in fields[1:3])
        return [f"sm_{fields[1]}{fields[2]}"] if known else []
    if not match["several"]:
        return [match["gpu"]]
    several, later, _ = match["several"].partition(" and later")
    names = several.split(", ")
    return [*names, f"{names[-1]}+"] if later else names
