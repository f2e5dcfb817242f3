"""Compile programs with TensorRT inside ExecuTorch's lowering, as a partitioner's transform.

The way is that of ``torch_tensorrt.compile`` and ``torch_tensorrt.executorch.export``, so that the
engines and their blobs are the same.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from inspect import Parameter, signature
from typing import Any

import torch
from executorch.backends.aoti.aoti_partitioner import AotiPartitioner
from executorch.exir._data_dependent import (
    forget_unclaimed_symbols,
    has_data_dependent_shape,
)
from executorch.exir.backend._modules import (
    OTHER_MODULES,
    check_modules,
    outside_of_modules,
    warn_of_unknown_modules,
)
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.decompositions.host import host_decompositions
from executorch.exir.passes.propagate_device_pass import TARGET_DEVICE_COMPILE_SPEC_KEY
from executorch.exir.program._transforms import partitioners_behind
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch_tensorrt._Device import Device
from torch_tensorrt.dynamo import _compiler
from torch_tensorrt.dynamo._settings import CompilationSettings
from torch_tensorrt.dynamo.executorch.quantized import left_quantized
from torch_tensorrt.dynamo.fallback.decompositions import decomposes, keeps_whole
from torch_tensorrt.dynamo.fallback.metadata_keys import (
    LEFT_TO_OTHERS,
    OWNER,
    WHY_IN_PYTORCH,
    note_of,
    set_note,
)
from torch_tensorrt.dynamo.fallback.reasons import (
    TOO_FEW,
    note_reason,
    operators,
    origin,
)
from torch_tensorrt.dynamo.fallback.rejections import ABOUT_THE_MACHINE, first_line
from torch_tensorrt.dynamo.graphs.copies import with_graph_of_its_own
from torch_tensorrt.dynamo.graphs.lifting import lifted_program
from torch_tensorrt.dynamo.lowering._size_ranges import warned_by_caller
from torch_tensorrt.dynamo.state.mutations import declared_mutations, made_functional
from torch_tensorrt.dynamo.state.shared import made_traceable, with_state_named_once
from torch_tensorrt.executorch._release import with_parts_inlined
from torch_tensorrt.executorch.engines.nodes import engine_nodes
from torch_tensorrt.executorch.engines.placeholders import with_engine_placeholders

logger = logging.getLogger(__name__)

_EARLIER = "torch_tensorrt.earlier_engine"

#: Parameters of ``torch_tensorrt.dynamo.compile`` that are no settings.
_GIVEN = ("exported_program", "inputs", "arg_inputs", "kwarg_inputs")

#: Hints for arguments of earlier releases.
_INSTEAD = {
    "enabled_precisions": ": engines compute in the types of the model, so convert that, "
    "model.half(), or give enable_autocast=True and autocast_low_precision_type=torch.float16"
}


def checked_settings(
    settings: Mapping[str, Any] | CompilationSettings,
) -> dict[str, Any]:
    """Return settings as keyword arguments of ``torch_tensorrt.dynamo.compile``.

    Args:
        settings: A mapping of those, or a ``CompilationSettings``. ``target_executorch=True`` is
            implied.

    Raises:
        TypeError: It is neither.
        ValueError: There is no setting of the name, or settings exclude each other.
    """
    parameters = signature(_compiler.compile).parameters.values()
    known = {
        p.name
        for p in parameters
        if p.kind is not Parameter.VAR_KEYWORD and p.name not in _GIVEN
    }
    if isinstance(settings, CompilationSettings):
        settings = _changed(settings, known)
    elif not isinstance(settings, Mapping):
        raise TypeError(
            "compile_settings takes a mapping of settings of torch_tensorrt.dynamo.compile, or a "
            f"CompilationSettings, not {type(settings).__name__}"
        )
    for name in settings:
        if name not in known:
            close = difflib.get_close_matches(str(name), sorted(known), n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            hint = _INSTEAD.get(str(name), hint)
            raise ValueError(
                f"compile_settings: torch_tensorrt.dynamo.compile has no setting {name!r}{hint}"
            )
    checked = {**settings, "target_executorch": settings.get("target_executorch", True)}
    if checked["target_executorch"] is not True:
        raise ValueError(
            "compile_settings: a program that ExecuTorch lowers is compiled with "
            "target_executorch=True; leave it out"
        )
    if checked.get("require_full_compilation"):
        raise ValueError(
            "compile_settings: require_full_compilation=True leaves nothing to the partitioners "
            "behind; with fail_on_build_error=True whatever TensorRT has a converter for and "
            "can't build is an error"
        )
    return checked


def settings_of(
    settings: Mapping[str, Any] | CompilationSettings,
    compile_specs: Sequence[CompileSpec],
) -> dict[str, Any]:
    """Return a partitioner's settings, which build engines for the GPU that ``target_device`` labels them with.

    Those that have a device keep it.

    Raises:
        TypeError, ValueError: As :func:`checked_settings`; or ``modules`` among the specs names nothing.
    """
    check_modules("TensorRTPartitioner", compile_specs)
    settings = checked_settings(settings)
    for spec in compile_specs:
        if spec.key == TARGET_DEVICE_COMPILE_SPEC_KEY and "device" not in settings:
            device = torch.device(bytes(spec.value).decode())
            return {**settings, "device": Device(gpu_id=device.index or 0)}
    return settings


def _changed(settings: CompilationSettings, known: set[str]) -> dict[str, Any]:
    """Return what ``settings`` has other than by default, all of which has to be ``known``."""
    default = CompilationSettings()
    changed = {
        field.name: getattr(settings, field.name)
        for field in fields(settings)
        if field.init and getattr(settings, field.name) != getattr(default, field.name)
    }
    changed.pop("target_executorch", None)  # implied
    return changed


def compiled(
    program: ExportedProgram,
    settings: Mapping[str, Any],
    *,
    compile_specs: Sequence[CompileSpec] = (),
    fail_on_build_error: bool = False,
    owner: int | None = None,
) -> ExportedProgram:
    """Return ``program`` with the operators that TensorRT supports replaced by engines.

    The program is left as it is. What TensorRT takes nothing of is returned as it was, with a note
    at its operators that says why.

    Args:
        program: As ``torch.export.export`` returned it, in ATen; engines that it has already stay.
        settings: From :func:`checked_settings`.
        compile_specs: Of the partitioner; they may name modules, outside of which all is others'.
        fail_on_build_error: Raise what TensorRT raises, rather than leave to others what it can't
            build, with a warning that says so.
        owner: Noted at the engines, where there are others already.
    """
    if not fail_on_build_error:
        settings = {"executorch_build_fallback": True, **settings}
    try:
        module = _compiled(program, settings, compile_specs, owner)
    except Exception as error:
        # A machine that is exported for, and that TensorRT has no engines for, may be others' to serve.
        others = getattr(error, "about_the_target", False) and partitioners_behind()
        about_this_machine = isinstance(error, ABOUT_THE_MACHINE) and not others
        if fail_on_build_error or about_this_machine:
            raise
        reason = first_line(error)
        logger.warning(
            "TensorRT takes nothing of this program, which the partitioners behind get as it is: "
            "%s: %s. With fail_on_build_error=True this is an error",
            type(error).__name__,
            reason,
        )
        return _noted(program, lambda node: (str(node.target), reason))
    return module


def _compiled(
    program: ExportedProgram,
    settings: Mapping[str, Any],
    compile_specs: Sequence[CompileSpec],
    owner: int | None,
) -> ExportedProgram:
    # The shapes are those of the program: nothing is asked of example inputs.
    program = made_traceable(program)
    own_program = with_graph_of_its_own(program)
    forget_unclaimed_symbols(own_program)
    warn_of_unknown_modules("TensorRTPartitioner", own_program, compile_specs)
    for node in operators(own_program.graph_module):
        set_note(node, LEFT_TO_OTHERS, None)
    for node in outside_of_modules(own_program, compile_specs):
        set_note(node, LEFT_TO_OTHERS, OTHER_MODULES)
    earlier = engine_nodes(own_program.graph.nodes)
    for node in earlier:
        set_note(node, _EARLIER, True)
    behind = partitioners_behind()
    compilers = [
        partitioner
        for partitioner in behind
        if isinstance(partitioner, AotiPartitioner)
    ]
    # Compilers decompose by themselves; what others run whole is kept so, unless engines run its parts.
    whole = (
        p.ops_to_not_decompose(own_program)[0] for p in behind if p not in compilers
    )
    with (
        left_quantized(bool(behind), float8=bool(compilers)),
        keeps_whole(
            operator for operators_of_one in whole for operator in operators_of_one
        ),
        decomposes(host_decompositions()),
        warned_by_caller(),
    ):
        module = _compiler.compile(
            own_program, arg_inputs=(), kwarg_inputs={}, **settings
        )
    lifted = declared_mutations(lifted_program(with_parts_inlined(module)), module)
    engines = [n for n in engine_nodes(lifted.graph.nodes) if not note_of(n, _EARLIER)]
    if not engines:
        return _noted(program, _reasons(lifted))
    for node in engines if earlier else ():
        set_note(node, OWNER, owner)
    _check_interface(made_functional(program), lifted)
    placed = with_engine_placeholders(lifted)
    if any(map(has_data_dependent_shape, placed.graph.nodes)):
        # ExecuTorch traces it once more, where a size that depends on data can turn out to be
        # another symbol's, or no symbol's: better here, where the program can still go without.
        placed.run_decompositions({})
        forget_unclaimed_symbols(placed)
    return placed


#: An operator, and why it is in no engine.
_Reason = tuple[str, str]


def _reasons(compiled: ExportedProgram) -> Callable[[Node], _Reason | None]:
    """Return a function that gives the reason why an operator is in no engine, from the notes in ``compiled``.

    Lowering has decomposed some, whose parts know what they come from; what it has folded has no reason.
    """
    reasons: dict[tuple[str, str], _Reason] = {}
    for node in operators(compiled.graph_module):
        if why := note_of(node, WHY_IN_PYTORCH):
            known = reasons.get(origin(node))
            if known is None or known[1] == TOO_FEW:  # a part that is refused says more
                reasons[origin(node)] = str(node.target), why
    return lambda node: reasons.get(origin(node))


def _noted(
    program: ExportedProgram, reason: Callable[[Node], _Reason | None]
) -> ExportedProgram:
    """Return ``program`` with a note at its operators why they are in no engine, where that is known.

    State that it has under several names has one, else ExecuTorch can't decompose it either.
    """
    noted = with_graph_of_its_own(with_state_named_once(program))
    for node in operators(noted.graph_module):
        if note_of(node, WHY_IN_PYTORCH) is None and (known := reason(node)):
            note_reason(node, known[1], known[0])
    return noted


def _check_interface(
    program: ExportedProgram, compiled_program: ExportedProgram
) -> None:
    """Check that ``compiled_program`` is called and returns and writes as ``program`` does.

    Raises:
        RuntimeError: It doesn't; what differs is named.
    """
    for what, interface_of in (
        ("inputs", _inputs),
        ("outputs", _outputs),
        ("what is written", _written),
    ):
        wanted, got = interface_of(program), interface_of(compiled_program)
        if wanted != got:
            raise RuntimeError(
                f"compiling changed the program's {what}: {wanted} became {got}"
            )


def _inputs(program: ExportedProgram) -> list[str]:
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    return [
        f"{name} {_described(nodes[str(name)])}" if str(name) in nodes else repr(name)
        for name in program.graph_signature.user_inputs
    ]


def _outputs(program: ExportedProgram) -> list[str]:
    values = pytree.tree_leaves(program.graph.output_node().args[0])
    specs = program.graph_signature.output_specs
    return [
        _described(value) if isinstance(value, Node) else repr(value)
        for spec, value in zip(specs, values, strict=True)
        if spec.kind is OutputKind.USER_OUTPUT
    ]


def _written(program: ExportedProgram) -> list[str]:
    specs = program.graph_signature.output_specs
    return sorted(
        f"{spec.kind.name.lower()} {spec.target}"
        for spec in specs
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)
    )


def _described(node: Node) -> str:
    """Return the type of a value, without the names of dynamic sizes, which differ between graphs."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    sizes = ("?" if isinstance(s, torch.SymInt) else str(s) for s in value.shape)
    return f"{value.dtype}[{', '.join(sizes)}]"
