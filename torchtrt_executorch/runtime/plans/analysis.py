"""Static analysis of a plan: writers, aliases, and state that outlives a call."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Collection, Iterable, Mapping, Sequence

import torch

from torchtrt_executorch.runtime.plans.plan import (
    Allocation,
    Kind,
    Operation,
    Plan,
    PlanValue,
)

_TRANSPOSE = "aten::permute_copy.out"
_MATMULS = frozenset({"aten::addmm.out", "aten::bmm.out", "aten::mm.out"})


class Written:
    """The values written so far, to tell a delegate's outputs from its inputs.

    Whoever reads a program asks at each delegate whose payload doesn't tell (:meth:`count_inputs`), and
    notes each operation when it is read (:meth:`by`). Outputs come last. ExecuTorch's emitter makes their
    values when it comes to the delegate: they are numbered one after the other, and nobody has written
    them. A view that was planned away looks like one; but somebody has written its bytes under another
    name, and nobody has read them since, or somebody will, later on.

    Args:
        named: By value, the last instruction that names it.
    """

    def __init__(self, values: Sequence[PlanValue], named: Mapping[int, int]) -> None:
        self._values = values
        self._named = named
        self._now = -1
        self._known = {s.index for s in values if s.layout is None or s.stored}
        #: By written allocation, whether it was read since.
        self._places: dict[Allocation, bool] = {}

    def mark(self, indices: Iterable[int]) -> None:
        """Note values that are written, or hold state."""
        for index in indices:
            self._known.add(index)
            place = self._values[index].place
            if place is not None:
                self._places.pop(place, None)  # the last one written comes last
                self._places[place] = False

    def by(self, reads: Sequence[int], writes: Sequence[int]) -> None:
        """Note what the next operation does."""
        self._now += 1
        for index in reads:
            place = self._values[index].place
            if place in self._places:
                self._places[place] = True
        self.mark(writes)

    def count_inputs(self, args: Sequence[int]) -> int:
        """Return how many of a delegate's arguments are inputs."""
        count = len(args)
        while count and args[count - 1] not in self._known:
            follows = count == len(args) or args[count - 1] == args[count] - 1
            if not follows or (count < len(args) and self._is_view(args, count - 1)):
                break
            count -= 1
        return count

    def _is_view(self, args: Sequence[int], at: int) -> bool:
        """Whether exactly these bytes are another value's, which are still needed."""
        place = self._values[args[at]].place
        # State that a delegate makes anew in its own memory is an argument under both names.
        both = any(self._values[index].place == place for index in args[:at])
        if place not in self._places or both:
            return False
        if not self._places[place]:
            last = (
                p for p in reversed(self._places) if p == place or p.overlaps(place)
            )
            return next(last) == place
        others = (s.index for s in self._values if s.place == place)
        later = (i for i in others if self._named.get(i, -1) > self._now + 1)
        return not self._known.isdisjoint(later)


@dataclass(frozen=True)
class Uses:
    """Sets of values, by their indices.

    Attributes:
        rebindable: Values whose object differs between calls, as of tensors without planned memory.
            All others hold the same one for good, a tensor at most of another shape.
        delegate_private: Rebindable tensors that one delegate writes, and none but delegates read.
        per_call: Tensors whose memory is made for one call, and is nobody else's after it.
        used_by_host: Values that operations other than delegates use.
        written: Values whose memory is written, possibly through an alias.
    """

    rebindable: frozenset[int]
    delegate_private: frozenset[int]
    per_call: frozenset[int]
    used_by_host: frozenset[int]
    written: frozenset[int]

    @classmethod
    def of(cls, plan: Plan) -> Uses:
        """Read them off a plan."""
        others = [
            operation
            for operation in plan.operations
            if operation.kind is not Kind.DELEGATE
        ]
        replaced = {index for operation in others for index in operation.replaces}
        aliased = {index for operation in others for index in operation.aliases}
        used_by_host = {index for operation in others for index in operation.touches}
        free = {value.index for value in plan.values if value.free}
        made = free - set(plan.inputs)
        return cls(
            rebindable=frozenset(free | replaced),
            delegate_private=frozenset((made - used_by_host) & _written_once(plan)),
            per_call=frozenset(made - aliased - replaced),
            used_by_host=frozenset(used_by_host),
            written=frozenset(
                aliased.union(*(operation.writes for operation in plan.operations))
            ),
        )


def _written_once(plan: Plan) -> set[int]:
    """Return the values that a single delegate call writes; none where jumps may skip it."""
    writers: Counter[int] = Counter()
    for operation in plan.operations if plan.straight else ():
        if operation.kind is Kind.DELEGATE:
            writers.update(operation.writes)
    return {index for index, times in writers.items() if times == 1}


def fences(plan: Plan) -> frozenset[int]:
    """Return the synchronization copies: those that only order streams.

    The device pass inserts a copy of one byte that nothing writes, to one that nothing reads. With one stream for all
    delegates none is needed.
    """
    used: Counter[int] = Counter((*plan.inputs, *plan.outputs))
    for operation in plan.operations:
        used.update({*operation.args, *operation.touches})
    fence_indices = set()
    for index, operation in enumerate(plan.operations):
        if operation.is_copy and len(operation.args) == 3:
            source, out = plan.values[operation.args[0]], plan.values[operation.args[1]]
            only_use = used[source.index] == 1 and used[out.index] == 1
            if only_use and _is_byte(source) and _is_byte(out):
                fence_indices.add(index)
    return frozenset(fence_indices)


def _is_byte(value: PlanValue) -> bool:
    layout = value.layout
    planned = layout is not None and value.planned and value.stored is None
    return planned and (layout.dtype, layout.sizes) == (torch.uint8, (1,))  # type: ignore[union-attr]


@dataclass(frozen=True)
class Transposed:
    """A copy of a constant, transposed, that a view of the constant can stand for."""

    copy: int
    constant: int
    dims: tuple[int, ...]


def transposed_constants(
    plan: Plan, registered: Collection[str]
) -> dict[int, Transposed]:
    """Transposed weights that are seen as they are in the file instead of copied in every call.

    ExecuTorch's exporter writes a linear layer as a copy of its weight, transposed, and a matmul with
    that. The weight never changes, and torch's matmuls read a matrix in either order: where nothing
    else sees the copy, a view of the constant stands in its place.

    Args:
        registered: Operators whose kernels are the user's: nothing is known of those.

    Returns:
        By the operation that copies. Nothing is found in a method with jumps.
    """
    transposed: dict[int, Transposed] = {}
    if not plan.straight or _TRANSPOSE in registered:
        return transposed
    matmuls = _MATMULS.difference(registered)
    of_caller = {*plan.inputs, *plan.outputs}
    for index, operation in enumerate(plan.operations):
        view = _transposition(plan, operation)
        if view is None or view.copy in of_caller:
            continue
        if _only_multiplied(plan, index, plan.values[view.copy], matmuls):
            transposed[index] = view
    return transposed


def _transposition(plan: Plan, operation: Operation) -> Transposed | None:
    """Return a transposition of a constant into planned memory; None if it is none, or not sound."""
    if (
        operation.name != _TRANSPOSE
        or len(operation.args) != 4
        or operation.args[2] != operation.args[3]
    ):
        return None
    source, order, out = (plan.values[index] for index in operation.args[:3])
    if not source.constant or not out.planned or out.stored or order.items is None:
        return None
    one, other = source.layout, out.layout
    assert one is not None and other is not None
    dims = tuple(plan.values[i].literal for i in order.items if i is not None)
    rank = len(one.sizes)
    if not all(type(dim) is int and -rank <= dim < rank for dim in dims):
        return None
    sizes = tuple(one.sizes[dim] for dim in dims)
    same = (one.dtype, one.device, sizes) == (other.dtype, other.device, other.sizes)
    every = sorted(dim % rank for dim in dims) == list(range(rank))
    view = Transposed(out.index, source.index, dims)
    return view if same and every and other.static else None


def _only_multiplied(
    plan: Plan, index: int, copy: PlanValue, matmuls: Collection[str]
) -> bool:
    """Whether only matmuls read ``copy``, written by operation ``index``.

    Its bytes are others' again from the first operation on that writes a tensor there.
    """
    place = copy.place
    assert place is not None

    def overlaps(indices: tuple[int, ...]) -> bool:
        others = (plan.values[index].place for index in indices if index != copy.index)
        return any(other is not None and other.overlaps(place) for other in others)

    if any(copy.index in operation.touches for operation in plan.operations[:index]):
        return False
    over = False
    for operation in plan.operations[index + 1 :]:
        reads_it = operation.name in matmuls and copy.index not in operation.writes
        if copy.index in operation.touches and (over or not reads_it):
            return False
        if not over and overlaps(operation.reads):
            return False
        over = over or overlaps(operation.touches)
    return True
