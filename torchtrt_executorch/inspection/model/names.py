"""Names of values: from the model, from engine bindings, or by position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchtrt_executorch.inspection.formatting import short
from torchtrt_executorch.inspection.model.facts import Method
from torchtrt_executorch.inspection.model.state import state
from torchtrt_executorch.runtime.nesting import Tree, arguments


def input_names(text: str, count: int) -> tuple[str, ...]:
    """Return what inputs are called: ``input 0``, ``input 1['mask']``, or the keyword.

    Args:
        text: PyTorch's description of how they are nested, as a file has it.
        count: How many there are; if it says of more or fewer, none has a name.
    """
    args, keywords = arguments(text) or (Tree(), Tree())
    named_trees = [
        (f"input {index}", child) for index, child in enumerate(args.children)
    ]
    named_trees += zip(map(str, keywords.keys or ()), keywords.children, strict=False)
    try:
        if (
            sum(1 for _, named_tree in named_trees for _ in _leaves("", named_tree))
            == count
        ):
            return tuple(
                name for named_tree in named_trees for name in _leaves(*named_tree)
            )
    except RecursionError:
        pass
    return ()


def _leaves(name: str, tree: Tree) -> Iterator[str]:
    # A key is handed down to all that is below it: a long one isn't to be there as often.
    name = short(name)
    if tree.kind is None:
        yield name
    keys = range(len(tree.children)) if tree.keys is None else tree.keys
    for key, below in zip(keys, tree.children, strict=True):
        yield from _leaves(f"{name}[{key!r}]", below)


def names(method: Method) -> dict[int, str]:
    """Return what the values of a method are called, by index; those of which nothing is known are left out.

    The caller's inputs have the names of keyword arguments. What is copied keeps its name.
    """
    name_of: dict[int, str] = {}
    caller_names = method.input_names
    if len(caller_names) != len(method.inputs):
        caller_names = ()
    for place, index in enumerate(method.outputs):
        name_of[index] = f"output {place}"
    for place, index in enumerate(method.inputs):
        name_of[index] = (
            short(caller_names[place]) if caller_names else f"input {place}"
        )
    name_of.update(
        (state_index, f"state {i}")
        for i, state_index in enumerate(sorted(state(method)))
    )
    own = {value.index: short(value.name) for value in method.values if value.name}
    name_of.update(own)
    by_engine = dict(_by_engine(method))
    edge = {*method.inputs, *method.outputs}
    copies = [
        (step.reads[0], step.writes[0])
        for step in method.instructions
        if step.kind == "copy" and step.reads and step.writes
    ]
    for source, copied in reversed(copies):
        if copied in by_engine:
            by_engine.setdefault(source, by_engine[copied])
    for index, name in by_engine.items():
        if index in edge and name_of[index] not in (name, own.get(index)):
            name_of[index] = f"{name} ({name_of[index]})"
        else:
            name_of.setdefault(index, name)
    for source, copied in copies:
        if source in name_of:
            name_of.setdefault(copied, name_of[source])
    return name_of


def listed(method: Method, values: Sequence[int], most: int = 4) -> str:
    """Return the names of some values, the first of many."""
    known = names(method)
    shown = [short(known.get(index, f"value {index}"), 30) for index in values[:most]]
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(shown) + more


def _by_engine(method: Method) -> Iterator[tuple[int, str]]:
    for step in method.instructions:
        if step.delegate is None:
            continue
        delegate = method.delegates[step.delegate]
        for values, called in (
            (step.writes, delegate.outputs),
            (step.reads, delegate.inputs),
        ):
            if len(values) == len(called):
                yield from zip(values, map(short, called), strict=True)
