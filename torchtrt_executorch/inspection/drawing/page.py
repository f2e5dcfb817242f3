"""HTML page of a file: a diagram per method, findings, and memory.

Nothing is loaded from anywhere. Whatever a file calls things is text: templates escape it, data for
the script is JSON without ``<``, and a content security policy only allows that one script.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any, Sequence

from markupsafe import Markup

from torchtrt_executorch import __version__
from torchtrt_executorch.inspection.advice import Finding
from torchtrt_executorch.inspection.cpp_host import needs
from torchtrt_executorch.inspection.drawing.diagram import Diagram, draw, templates
from torchtrt_executorch.inspection.drawing.timeline import Row
from torchtrt_executorch.inspection.formatting import short, tensor
from torchtrt_executorch.inspection.model.facts import Facts, Method
from torchtrt_executorch.inspection.model.memory import Usage, usage
from torchtrt_executorch.inspection.model.names import names

#: The most items of each kind on a page: a file may have any number.
MOST_METHODS, MOST_DELEGATES, MOST_FINDINGS, MOST_NAMED = 12, 500, 200, 500
MOST_TIMES = 12
_MOST_VALUES, _MOST_OF_A_ROW = 60_000, 60
_CHART_POINTS = 600


def page(facts: Facts, findings: Sequence[Finding]) -> str:
    """Return the page of a file, and of what is found in it."""
    environment = templates()
    script = _source("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        facts=facts,
        findings=findings[:MOST_FINDINGS],
        more_findings=(
            len(findings) - MOST_FINDINGS if len(findings) > MOST_FINDINGS else 0
        ),
        sections=[_section(method) for method in facts.methods[:MOST_METHODS]],
        more_methods=max(len(facts.methods) - MOST_METHODS, 0),
        host=needs(facts),
        named_data=list(facts.named_data.items())[:MOST_NAMED],
        script=Markup(script),
        script_digest=digest,
        version=__version__,
    )


def _source(name: str) -> str:
    loader = templates().loader
    assert loader is not None
    return loader.get_source(templates(), name)[0]


def _section(method: Method) -> dict[str, Any]:
    diagram = draw(method)
    transfers, times = method.transfers, method.times
    slowest: list[Row] = []
    if times is not None:
        timed = [box.row for box in diagram.boxes if box.row.nanoseconds]
        slowest = sorted(timed, key=lambda row: -(row.nanoseconds or 0))[:MOST_TIMES]
    return {
        "method": method,
        "diagram": diagram,
        "transfers": len(transfers),
        "crossed": sum(transfer.nbytes for transfer in transfers),
        "staged": sum(transfer.nbytes for transfer in transfers if transfer.staged),
        "charts": [_chart(used) for used in usage(method)],
        "delegates": method.delegates[:MOST_DELEGATES],
        "slowest": slowest,
        "data": _data(method, diagram),
    }


def _chart(used: Usage) -> dict[str, Any]:
    """Return the bytes in use as the outline of an area, 600 by 60; each point the most of its stretch."""
    count = len(used.used)
    step = max(1, -(-count // _CHART_POINTS))
    most = [max(used.used[at : at + step]) for at in range(0, count, step)]
    width = 600 / max(len(most), 1)
    path = "M0 60"
    for index, nbytes in enumerate(most):
        y = 60 - 56 * nbytes / used.planned
        path += f"L{index * width:.1f} {y:.1f}L{(index + 1) * width:.1f} {y:.1f}"
    return {
        "device": used.device,
        "planned": used.planned,
        "peak": used.peak,
        "peak_at": used.peak_at,
        "path": f"{path}L600 60z",
    }


def _data(method: Method, diagram: Diagram) -> Markup:
    """Return the script's data: rows in order, and the values that they use."""
    rows = [box.row for box in diagram.boxes]
    made: dict[int, list[int]] = {}
    read: dict[int, list[int]] = {}
    for row in rows:
        for uses, values in ((made, row.writes), (read, row.reads)):
            for value in values:
                uses.setdefault(value, []).append(row.number)
    shown = list(
        dict.fromkeys(v for row in rows for v in _some(row.reads) + _some(row.writes))
    )
    known = names(method)
    tree = {
        "rows": [_row(method, row) for row in rows],
        "values": {
            index: {
                "name": known.get(index, f"value {index}"),
                "text": tensor(value),
                "device": value.device,
                "made": made.get(index, [])[:100],
                "read": read.get(index, [])[:100],
            }
            for index in shown[:_MOST_VALUES]
            for value in (method.values[index],)
        },
    }
    text = json.dumps(tree, separators=(",", ":"))
    return Markup(
        text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    )


def _some(values: tuple[int, ...]) -> tuple[int, ...]:
    return values[:_MOST_OF_A_ROW]


def _row(method: Method, row: Row) -> dict[str, Any]:
    steps = (
        method.instructions[row.first : row.last + 1] if row.kind == "kernels" else ()
    )
    return {
        "kind": row.kind,
        "name": row.called if row.first == row.last else f"{row.called}–{row.last}",
        "first": row.first,
        "last": row.last,
        "kernels": [f"#{step.index} {short(step.name)}" for step in steps[:100]],
        "reads": _some(row.reads),
        "writes": _some(row.writes),
        "read": len(row.reads),
        "written": len(row.writes),
    }
