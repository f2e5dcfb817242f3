"""Assign parameters, constants and mutable buffers to partitions."""

from __future__ import annotations

from collections import Counter
from typing import Mapping

from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

_CONSTANTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def constant_owners(
    program: ExportedProgram,
    tags: Mapping[Node, str],
    default_owner: str,
    keeps_state: bool = True,
) -> dict[Node, str]:
    """Return the partition that each parameter, buffer and lifted constant moves into.

    The others stay in the program, whose delegates get them as arguments:

    - constants that no partition reads: their readers, delegates of others, keep them;
    - constants that several read, if lowering can't give each reader a copy of its own;
    - mutable buffers, unless a single partition reads and writes them: a copy would be a second
      state; all of them without ``keeps_state``.

    Args:
        program: Program that is being partitioned.
        tags: Partition of each claimed node of the top-level graph.
        default_owner: Partition that takes the constants that nothing reads.
        keeps_state: Whether a partition may keep mutable buffers.

    Returns:
        Partition of each placeholder that moves.
    """
    signature = program.graph_signature
    nodes = {node.name: node for node in program.graph.nodes}
    returned = Counter(spec.arg.name for spec in signature.output_specs)
    written = {
        spec.target: nodes[spec.arg.name]
        for spec in signature.output_specs
        if spec.kind == OutputKind.BUFFER_MUTATION
    }
    owners: dict[Node, str] = {}
    for spec in signature.input_specs:
        if spec.kind not in _CONSTANTS:
            continue
        constant = nodes[spec.arg.name]
        if spec.target in written:
            value = written[spec.target]
            owner = None
            if keeps_state:
                owner = _owner_of_state(constant, value, tags, returned[value.name])
        else:
            lifted = spec.kind == InputKind.CONSTANT_TENSOR
            owner = (
                _owner_of_constant(constant, tags, lifted)
                if constant.users
                else default_owner
            )
        if owner is not None:
            owners[constant] = owner
    return owners


def _owner_of_state(
    buffer: Node, value: Node, tags: Mapping[Node, str], times_returned: int
) -> str | None:
    """Return the only partition that reads ``buffer`` and computes its next ``value``; None if there are several."""
    owners = {tags.get(node) for node in (*buffer.users, value)}
    readers = {tags.get(user) for user in value.users if user.op != "output"}
    if len(owners | readers) > 1 or times_returned > 1:
        return None
    return owners.pop()


def _owner_of_constant(
    constant: Node, tags: Mapping[Node, str], lifted: bool
) -> str | None:
    """Return the partition that reads ``constant``, the first one if all can have copies.

    Lowering copies a shared constant once for each reader. It doesn't look for it inside lists,
    and a program that holds a lifted constant twice can't be run.
    """
    owners = [tags.get(user) for user in constant.users]
    copyable = (
        not constant.meta.get("no_copy")
        and all(_reads_directly(user, constant) for user in constant.users)
        and not (lifted and len(set(owners)) < len(owners))
    )
    if len(set(owners)) > 1 and not copyable:
        return None
    return next((owner for owner in owners if owner is not None), None)


def _reads_directly(user: Node, constant: Node) -> bool:
    arguments = (*user.args, *user.kwargs.values())
    nested = [argument for argument in arguments if not isinstance(argument, Node)]
    return constant not in pytree.tree_leaves(nested)
