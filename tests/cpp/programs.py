"""Programs that show whether delegates run in order in ExecuTorch's C++ runtime, and their making.

Each is lowered to stand-ins for a GPU's delegates (`standin`), or by ExecuTorch's CUDA backend, and
emitted by our device pass, by ours for one stream, and by upstream's.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import standin
import torch
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    to_edge,
    to_edge_transform_and_lower,
)
from executorch.exir.capture._config import ExecutorchBackendConfig
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from executorch.exir.program import _program
from executorch.exir.schema import KernelCall
from models import MODELS, Model
from releases import DELEGATE_RELEASES, delegates_of
from torch.export import export
from torch.fx.passes.infra.pass_base import PassResult

from torchtrt_executorch.overlay.upstream import load_upstream

PASS = "executorch.exir.passes.propagate_device_pass"


def planned(on: bool = True) -> ExecutorchBackendConfig:
    return ExecutorchBackendConfig(enable_non_cpu_memory_planning=on)


def resident(
    inputs: bool, outputs: bool, allocate: bool = False
) -> ExecutorchBackendConfig:
    return ExecutorchBackendConfig(
        propagate_device_config=PropagateDeviceConfig(inputs, outputs),
        memory_planning_pass=MemoryPlanningPass(
            alloc_graph_input=allocate, alloc_graph_output=allocate
        ),
    )


OPTIONS = {
    "default": planned,
    "skip": lambda: resident(True, True),
    "skipin": lambda: resident(True, False),
    "skipout": lambda: resident(False, True),
    "noalloc": lambda: resident(False, False),
}

#: Of ours those for Torch-TensorRT 2.14's delegate, and for 2.13's.
SIDES = ("ours", "ours-2.13", "one-stream", "upstream")
#: Kinds of delegates by turns, beside a program's own.
MIXED = (("CudaBackend", "TensorRTBackend"), ("TensorRTBackend", "CudaBackend"))


def lower(
    program: Model, real: bool, backends: Sequence[str] = ()
) -> tuple[torch.nn.Module, EdgeProgramManager]:
    """The model and its edge program, with stand-ins of its backends, or of these, or CUDA libraries if ``real``."""
    torch.manual_seed(0)
    size = program.size(real)
    model = program.model(size).eval()
    with torch.no_grad():  # else what the host writes back to a buffer is refused
        exported = export(model, (program.inputs(size, 0),))
    config = EdgeCompileConfig(_check_ir_validity=False)
    groups = standin.ends_and_begins(program.host)
    if not real:
        edge = to_edge(exported, compile_config=config)
        edge = edge.to_backend(standin.Groups(groups))
        return model, standin.pose(edge, backends or program.backends)
    from cuda_groups import CudaGroups

    partitioner = CudaGroups(groups)
    return model, to_edge_transform_and_lower(
        exported, partitioner=[partitioner], compile_config=config
    )


def emit(edge: EdgeProgramManager, config: ExecutorchBackendConfig, side: str) -> Any:
    """The ExecuTorch program of a copy of ``edge``, by one of `SIDES`."""
    devices = config.propagate_device_config
    if side == "one-stream":
        devices.shared_stream = True
    edge = copy.deepcopy(edge)
    if side != "upstream":
        with delegates_of(DELEGATE_RELEASES[side == "ours"]):
            return edge.to_executorch(config)
    theirs = load_upstream(PASS).PropagateDevicePass
    with mock.patch.multiple(
        _program,
        PropagateDevicePass=theirs,
        DelegateOrderPass=_no_pass,
        DeviceStatePass=_no_pass,
    ):
        return edge.to_executorch(config)


def _no_pass(*args: Any, **kwargs: Any) -> Any:
    """Stands for a pass that upstream hasn't."""
    return lambda graph_module: PassResult(graph_module, False)


_no_pass.for_method = _no_pass  # type: ignore[attr-defined]


def make(folder: Path, real: bool, names: Sequence[str] = ()) -> None:
    """Writes ``PROGRAM.KINDS_OPTION_SIDE/program.pte``, and ``PROGRAM.pt``, the model's state."""
    folder.mkdir(parents=True, exist_ok=True)
    for program in MODELS:
        if (program.real_only and not real) or (names and program.name not in names):
            continue
        mixed = not real and program.backends == ("CudaBackend",)
        for kinds in (program.backends, *(MIXED if mixed else ())):
            model, edge = lower(program, real, kinds)
            torch.save(model.state_dict(), folder / f"{program.name}.pt")
            letters = "".join(kind[0] for kind in kinds)
            _make(
                folder,
                f"{program.name}.{letters}",
                program,
                edge,
                kinds != program.backends,
            )


def _make(
    folder: Path, case: str, program: Model, edge: EdgeProgramManager, mixed: bool
) -> None:
    for option in program.options:
        engines = "T" in case.rpartition(".")[2]
        for side in SIDES[:2] if mixed else SIDES:
            if side == "ours-2.13" and not engines:
                continue
            name = f"{case}_{option}_{side}"
            try:
                emitted = emit(edge, OPTIONS[option](), side)
            except Exception as error:
                print(f"{name}: refused, {str(error).splitlines()[0][:80]}")
                continue
            (folder / name).mkdir(exist_ok=True)
            emitted.save(str(folder / name / "program.pte"))
            plan = emitted.executorch_program.execution_plan[0]
            (folder / name / "facts.json").write_text(json.dumps(_facts(plan)))


def _facts(plan: Any) -> dict[str, Any]:
    """The number of copies in each direction that a call makes, and its backends."""
    called = [
        plan.operators[each.instr_args.op_index].name
        for each in plan.chains[0].instructions
        if isinstance(each.instr_args, KernelCall)
    ]
    copies = {way: called.count(f"et_copy::_{way}_copy") for way in ("h2d", "d2h")}
    return {**copies, "backends": sorted({each.id for each in plan.delegates})}
