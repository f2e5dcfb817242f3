"""Facts of a file as JSON, as ``inspect --json`` writes them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Sequence

from torchtrt_executorch.inspection.advice import Finding
from torchtrt_executorch.inspection.cpp_host import needs
from torchtrt_executorch.inspection.difference import Change
from torchtrt_executorch.inspection.model.facts import Facts, Method
from torchtrt_executorch.inspection.model.memory import usage

#: Goes up when a key changes its meaning or goes; new keys may come at any time.
SCHEMA = "torchtrt-executorch/inspection/1"


def as_data(
    facts: Facts,
    findings: Sequence[Finding],
    changes: Sequence[Change] | None = None,
) -> dict[str, Any]:
    """Return the facts of a file as lists, dictionaries, strings and numbers."""
    tree = {
        "schema": SCHEMA,
        "name": facts.name,
        "bytes": facts.nbytes,
        "methods": [_method(method) for method in facts.methods],
        "named_data": dict(facts.named_data),
        "data_files": list(facts.data_files),
        "missing_data": dict(facts.missing_data),
        "common_state": facts.common.as_table(),
        "host": dict(needs(facts)),
        "findings": [asdict(finding) for finding in findings],
    }
    if changes is not None:
        tree["changes"] = [asdict(change) for change in changes]
    return tree


def _method(method: Method) -> dict[str, Any]:
    return {
        "name": method.name,
        "devices": list(method.devices),
        "inputs": list(method.inputs),
        "outputs": list(method.outputs),
        "input_names": list(method.input_names),
        "memory": [
            {
                "device": used.device,
                "planned": used.planned,
                "peak": used.peak,
                "peak_at": used.peak_at,
                "used": list(used.used),
            }
            for used in usage(method)
        ],
        "arenas": [asdict(arena) for arena in method.arenas],
        "delegates": [asdict(delegate) for delegate in method.delegates],
        "instructions": [asdict(step) for step in method.instructions],
        "values": [asdict(value) for value in method.values],
        "faults": [
            {"instruction": index, "text": text} for index, text in method.faults
        ],
        "without_kernel": list(method.without_kernel),
        "crossings": [asdict(transfer) for transfer in method.transfers],
        "between_gpus": [asdict(transfer) for transfer in method.between_gpus],
        "times": None if method.times is None else asdict(method.times),
    }
