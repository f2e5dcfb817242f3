"""Table of the mutable buffers that methods of a program share, and where each method stores them.

ExecuTorch plans each method by itself, so a cache that one method fills and another reads is two caches
unless something shares it: an arena that the host gives to all methods
(``MemoryPlanningPass(share_mutable_buffers=True)``), or, for buffers inside of CUDA libraries, an option
of the backend. Neither can be told from the methods' plans, so a program that has such buffers holds this
table.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from executorch.exir._serialize._named_data_store import NamedDataStoreOutput

#: The key of the table in the program's named data.
KEY = "executorch.common_state"


class Planned(NamedTuple):
    """A buffer in planned memory: an arena of its method, and a byte there."""

    arena: int
    offset: int


#: Planned memory, or the backend of the delegate that keeps it.
Location = Planned | str

#: Its name, shape and type.
_Buffer = tuple[str, "tuple[int, ...]", torch.dtype]

_SHARE = (
    "If they are meant to be one, give to_executorch ExecutorchBackendConfig("
    "memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True))."
)
_LEAVE_TO_PLANNER = (
    "If they are meant to be one, give CudaPartitioner the compile spec "
    "CompileSpec('keep_mutable_buffers', b'OFF'), so that no library keeps them, and to_executorch "
    "ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True))."
)
_SET_OPTION = (
    "If they are meant to be one, the host has to set the option weight_sharing_across_methods of "
    "CudaBackend before it loads a method."
)


_GIVE_MEMORY = "The host has to give all methods the same memory for those arenas."


#: Kinds of buffers: shared if the host gives methods the same memory, shared if it sets an option, or not shared.
SHARED, IN_LIBRARIES, SEPARATE = (
    "shared-arenas",
    "state-in-libraries",
    "separate-state",
)


class Need(NamedTuple):
    """Requirement of buffers that all methods are to share.

    Attributes:
        kind: ``SHARED``, ``IN_LIBRARIES`` or ``SEPARATE``.
        text: The buffers, their methods and locations.
        advice: How to share them.
    """

    kind: str
    text: str
    advice: str


@dataclass(frozen=True)
class CommonState:
    """Buffers that one method writes, and another one reads or writes.

    Attributes:
        arenas: Arenas whose memory is shared by all methods.
        buffers: By name, where each method that has it keeps it.
    """

    arenas: frozenset[int] = frozenset()
    buffers: Mapping[str, Mapping[str, Location]] = field(default_factory=dict)

    def needs(self) -> list[Need]:
        """Return what the buffers need to be shared, grouped by equal needs."""
        names_of_need: dict[tuple[str, str, str], list[str]] = {}
        for name in self.buffers:
            names_of_need.setdefault(self._need(name), []).append(name)
        return [
            Need(kind, f"{self._named(names)}, {text}", advice)
            for (kind, text, advice), names in names_of_need.items()
        ]

    def _need(self, name: str) -> tuple[str, str, str]:
        locations = self.buffers[name]
        location, *others = {*locations.values()}
        if (
            isinstance(location, Planned)
            and location.arena in self.arenas
            and not others
        ):
            return SHARED, f"in arena {location.arena}, which they share", _GIVE_MEMORY
        if isinstance(location, str) and not others:
            text = f"and {location} keeps them for each by itself unless it is told to share"
            return IN_LIBRARIES, text, _SET_OPTION
        where = ", ".join(f"{m} {_described(place)}" for m, place in locations.items())
        inside = any(isinstance(place, str) for place in locations.values())
        advice = _LEAVE_TO_PLANNER if inside else _SHARE
        return SEPARATE, f"and nothing shares them: {where}", advice

    def _named(self, names: list[str]) -> str:
        methods = " and ".join(dict.fromkeys(m for n in names for m in self.buffers[n]))
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        return f"{methods} have the buffers {', '.join(names[:2])}{more}, which one of them writes"

    def kept_by_delegates(self, method: str) -> frozenset[str]:
        """Return the buffers that delegates of a method keep."""
        return frozenset(
            name
            for name, locations in self.buffers.items()
            if isinstance(locations.get(method), str)
        )

    def as_table(self) -> dict[str, Any]:
        """Return the table as JSON values."""
        return {"arenas": sorted(self.arenas), "buffers": self.buffers}


def read_table(table: bytes | memoryview) -> CommonState:
    """Read the table of a program.

    Raises:
        ValueError: It is damaged.
    """
    try:
        parsed = json.loads(bytes(table))
        arenas = frozenset(map(_number, parsed["arenas"]))
        buffers = {
            name: {method: _location(value) for method, value in locations.items()}
            for name, locations in parsed["buffers"].items()
        }
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (KeyError, TypeError, AttributeError):
        raise ValueError("not a table of buffers") from None
    if not all(buffers.values()):
        raise ValueError("a buffer of no method")
    return CommonState(arenas, buffers)


def _described(location: Location) -> str:
    if isinstance(location, str):
        return f"keeps them inside of {location}"
    return (
        "has them as constants"
        if location.arena == 0
        else "plans them into its own memory"
    )


def _location(value: Any) -> Location:
    if isinstance(value, str):
        return value
    arena, offset = value
    return Planned(_number(arena), _number(offset))


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no arena or offset")
    return value


def with_shared_buffer_table(
    named: NamedDataStoreOutput | None,
    programs: Mapping[str, Any],
    arenas: frozenset[int],
) -> NamedDataStoreOutput | None:
    """Return a program's named data with the table of buffers that its methods share, if there are any.

    Warns of buffers that are not one for all methods, or only by the host's doing.

    Args:
        named: Data that delegates store.
        programs: The methods' ``ExportedProgram``s, planned.
        arenas: Those that are one memory for all of them.
    """
    # Readers of a program only need the table.
    from executorch.exir.program._external_data import with_table

    state = common_state(programs, arenas)
    if not state.buffers:
        return named
    for kind, text, advice in state.needs():
        if kind != SHARED:
            warnings.warn(f"{text}. {advice}", RuntimeWarning, stacklevel=3)
    return with_table(named, KEY, state.as_table())


def common_state(
    programs: Mapping[str, Any], arenas: frozenset[int] = frozenset()
) -> CommonState:
    """Return the buffers that several methods have, and one of them writes.

    Args:
        programs: The methods' ``ExportedProgram``s, planned.
        arenas: Those that are one memory for all of them.
    """
    written: set[_Buffer] = set()
    locations: dict[_Buffer, dict[str, Location]] = {}
    for method, program in programs.items():
        signature = program.graph_signature
        written.update(_buffers(program, signature.buffers_to_mutate.values()))
        for node in program.graph.find_nodes(op="placeholder"):
            name = signature.inputs_to_buffers.get(node.name)
            location = name and _planned(
                node, name in signature.buffers_to_mutate.values()
            )
            if location:
                for buffer in _buffers(program, [name]):
                    locations.setdefault(buffer, {})[method] = location
        for lowered in _lowered_modules(program.graph_module):
            inner = lowered.original_module
            signature = inner.graph_signature
            written.update(_buffers(inner, signature.buffers_to_mutate.values()))
            for buffer in _buffers(inner, signature.inputs_to_buffers.values()):
                locations.setdefault(buffer, {}).setdefault(method, lowered.backend_id)
    common = {
        buffer[0]: by_method
        for buffer, by_method in locations.items()
        if buffer in written and len(by_method) > 1
    }
    return CommonState(arenas, common)


def _planned(node: Any, is_written: bool) -> Planned | None:
    """Return where a buffer is planned: arena 0 for a constant; None if the caller provides its memory."""
    spec = node.meta.get("spec")
    arena = getattr(spec, "mem_id", None)
    if arena is not None:
        return Planned(arena, spec.mem_offset or 0)
    return None if is_written else Planned(0, 0)


def _buffers(program: Any, names: Iterable[str]) -> Iterator[_Buffer]:
    """Yield the buffers of ``names``; of one name, those of different shapes or types are different buffers."""
    for name in names:
        tensor = program.state_dict.get(name, program.constants.get(name))
        if isinstance(tensor, torch.Tensor):
            yield name, tuple(tensor.shape), tensor.dtype


def _lowered_modules(graph_module: Any) -> list[Any]:
    from executorch.exir.lowered_backend_module import LoweredBackendModule

    return [
        module
        for module in graph_module.modules()
        if isinstance(module, LoweredBackendModule)
    ]
