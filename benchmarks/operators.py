"""PyTorch's operators, one by one: what lowers by a door, where it runs, and whether it agrees with eager.

    python -m benchmarks operators [--name OPERATOR ...] [--door NAME] [--every N] [--seconds N] [--out FILE]

The operators, and their inputs in float32, are those of PyTorch's own tests (``op_db``), two calls each, whose first is also called as
an operator behind another one. Doors: ``cuda-dry-run`` (by default) claims what ``CudaPartitioner`` does and compiles nothing, so
that an operator takes a second; ``cuda`` compiles libraries, which stand-ins run; ``tensorrt`` is TensorRT before XNNPACK, and
``xnnpack`` XNNPACK alone. Each operator has a process of its own. ``--out`` has a line of JSON per operator, and is continued
where it was left. The exit status is 1 if a value is wrong.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from benchmarks._processes import apart
from benchmarks.models._doors import DOORS, warm
from benchmarks.models._measure import difference

_CALLS, _TOLERANCE, _GIGABYTES = 2, 1e-3, 4
#: What differs in every call.
_RANDOM = (
    *("bernoulli", "cauchy", "dropout", "empty", "exponential", "fractional"),
    *("geometric", "multi_head", "multinomial", "normal", "rand", "rrelu"),
    *("uniform", "jiterator"),
)


def main(options: list[str] | None = None) -> None:
    """Lower and run the operators that are asked for, and print what became of them."""
    arguments = _arguments(options or [])
    rows: dict[str, dict[str, Any]] = {}
    if arguments.out is not None and arguments.out.exists():
        lines = arguments.out.read_text().splitlines()
        rows = {row["operator"]: row for row in map(json.loads, lines)}
    warm()
    names = [*_operators()]
    for name in (arguments.name or names)[:: arguments.every]:
        if name not in rows:
            limits = {"seconds": arguments.seconds, "gigabytes": _GIGABYTES}
            found = apart(_measure, name, arguments.door, **limits)
            rows[name] = {"operator": name, **found}
            print(json.dumps(rows[name]), flush=True)
            if arguments.out is not None:
                with arguments.out.open("a") as file:
                    print(json.dumps(rows[name]), file=file)
    _print(rows)
    if wrong := [name for name, row in rows.items() if row.get("outcome") == "wrong"]:
        sys.exit(f"wrong: {', '.join(wrong)}")


def _arguments(options: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks operators")
    parser.add_argument("--name", action="append")
    parser.add_argument("--door", choices=_DOORS, default="cuda-dry-run")
    parser.add_argument("--every", type=int, default=1, metavar="N")
    parser.add_argument("--seconds", type=int, default=120, metavar="N")
    parser.add_argument("--out", type=Path, metavar="FILE")
    return parser.parse_args(options)


_DOORS = ("cuda-dry-run", "cuda", "tensorrt", "xnnpack")


def _operators() -> Iterator[str]:
    """Yield the operators of ``op_db`` that have float32, return the same for the same, and take no function."""
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        name = _name(info)
        told = any(word in name for word in _RANDOM)
        if info.supports_dtype(torch.float32, "cpu") and not told:
            yield name


def _name(info: Any) -> str:
    return ".".join(filter(None, (info.name, info.variant_test_name)))


class _Call(nn.Module):
    """A call of an operator, whose tensors are inputs."""

    def __init__(self, operator: Any, arguments: Any) -> None:
        super().__init__()
        leaves, self.spec = pytree.tree_flatten(arguments)
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.inputs = tuple(leaves[place].detach() for place in self.places)
        self.leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.operator = operator

    def forward(self, *inputs: Tensor) -> Any:
        leaves = [*self.leaves]
        for place, value in zip(self.places, inputs, strict=True):
            leaves[place] = value
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        found = self.operator(*args, **kwargs)
        tensors = pytree.tree_leaves(found)
        return [each for each in tensors if isinstance(each, Tensor)]


def _partitioners(door: str) -> list[Any]:
    if door != "cuda-dry-run":
        return DOORS[door].partitioners()
    from executorch.exir.backend.partitioner import DelegationSpec

    (partitioner,) = DOORS["cuda"].partitioners()
    specs = partitioner.delegation_spec.compile_specs
    partitioner.delegation_spec = DelegationSpec(_dry_run_backend().__name__, specs)
    return [partitioner]


@functools.cache
def _dry_run_backend() -> type:
    from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult

    class DryRunBackend(BackendDetails):
        """Compiles nothing: its delegates run the program that they were given."""

        @staticmethod
        def preprocess(edge_program: Any, compile_specs: Any) -> PreprocessResult:
            return PreprocessResult(processed_bytes=b"")

    return DryRunBackend


def _measure(name: str, door: str) -> dict[str, Any]:
    """Return the ``outcome`` of an operator, that of the first call that isn't all in delegates if there is one.

    ``delegated``, ``host`` with the operators there, ``not exported``, ``not lowered``, ``not run`` or ``wrong``, with ``why``.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    (info,) = [each for each in op_db if _name(each) == name]
    samples = info.sample_inputs("cpu", torch.float32, requires_grad=False)
    found: dict[str, Any] = {"outcome": "no inputs"}
    with torch.no_grad():
        for sample in islice(samples, _CALLS):
            call = _Call(info.op, ((sample.input, *sample.args), sample.kwargs))
            found = _run(call, door)
            if found["outcome"] != "delegated":
                break
    return found


def _run(call: _Call, door: str) -> dict[str, Any]:
    from executorch.exir import to_edge_transform_and_lower

    from torchtrt_executorch import runtime

    found: dict[str, Any] = {"outcome": "not exported"}
    try:
        wanted = call(*(each.clone() for each in call.inputs))
        program = torch.export.export(call, call.inputs)
        found["outcome"] = "not lowered"
        edge = to_edge_transform_and_lower(program, partitioner=_partitioners(door))
        graph = edge.exported_program().graph
        host = Counter(
            str(getattr(node.target, "_op", node.target)).removeprefix("aten.")
            for node in graph.nodes
            if hasattr(node.target, "_op")
        )
        found["host"] = {**host}
        found["why"] = sorted(
            {
                reason
                for node in graph.nodes
                for key, reason in (node.meta.get("custom") or {}).items()
                if key == "executorch.why_not_delegated"
            }
        )
        emitted = edge.to_executorch()
        found["outcome"] = "not run"
        inputs = [each.clone() for each in call.inputs]
        if door == "cuda-dry-run":
            values = edge.exported_program().module()(*inputs)
        else:
            data = [bytes(weights) for weights in emitted._tensor_data.values()]
            values = runtime.load(emitted.buffer, data).run(*inputs)
        found["difference"] = difference(values, wanted)
        right = found["difference"] <= _TOLERANCE
        found["outcome"] = ("host" if host else "delegated") if right else "wrong"
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        found["why"] = [f"{type(error).__name__}: {lines[0][:200]}", lines[-1][:600]]
    return found


def _print(rows: dict[str, dict[str, Any]]) -> None:
    counts = Counter(row.get("outcome", "stopped") for row in rows.values())
    table = Table(title=f"{len(rows)} operators")
    for heading in ("outcome", "operators"):
        table.add_column(heading, justify="left" if heading == "outcome" else "right")
    for outcome, count in counts.most_common():
        table.add_row(outcome, str(count))
    Console(width=120).print(table)
