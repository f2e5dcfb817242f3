"""Diagram of a method: a lane per device, a box per instruction, an arrow per value.

Across, everything is in percent of the width, so that a page can be of any; down, in pixels. What is
drawn where only follows from the order of instructions. Arrows over more than :data:`FAR` rows are
drawn at their ends only, with the number of the instruction at the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Sequence

import jinja2

from torchtrt_executorch.inspection.drawing.timeline import (
    Arrow,
    Row,
    arrows,
    described,
    rows,
)
from torchtrt_executorch.inspection.formatting import (
    counted,
    duration,
    payload,
    short,
    size,
)
from torchtrt_executorch.inspection.model.facts import Method

BOX, COPY, GAP = 46, 26, 24
LINE = 15
TOP = 10
FAR = 30
#: Rows in one piece of a page; pieces out of sight aren't laid out by the browser.
PIECE = 40
LANE_WIDTH = 250
_BOX_WIDTH = 0.80
#: Characters that fit a line of a box in a lane of that width, in bold and in small type.
_TITLE, _TEXT = 24, 30
_PIECES = re.compile(r"[^\s_:.,]+[\s_:.,]*|[\s_:.,]+")
_TRACKS = 4


@dataclass(frozen=True)
class Drawn:
    """A row in its place. ``x`` and ``width`` are percent, ``y`` and ``height`` pixels."""

    row: Row
    says: str
    title: Sequence[str]
    text: Sequence[str]
    x: float
    width: float
    y: int
    height: int
    start: float = 0.0
    end: float = 0.0
    share: float = 0.0

    @property
    def bottom(self) -> int:
        return self.y + self.height


@dataclass(frozen=True)
class Line:
    """An arrow: its corners, in percent across and pixels down, and its labels."""

    arrow: Arrow
    corners: tuple[tuple[float, int], ...]
    says: str
    stub: str = ""
    far: str = ""


@dataclass(frozen=True)
class Diagram:
    """All that is drawn of a method. ``left_out`` instructions are not."""

    lanes: Sequence[str]
    boxes: Sequence[Drawn]
    lines: Sequence[Line]
    height: int
    left_out: int

    def pieces(self) -> list[tuple[int, int, list[Drawn], list[Line]]]:
        """Return the diagram cut across: top and height, boxes and lines of each piece."""
        tops = [self.boxes[at].y - GAP // 2 for at in range(0, len(self.boxes), PIECE)]
        tops[0] = 0
        ends = [*tops[1:], self.height]
        lines: list[list[Line]] = [[] for _ in tops]
        starts = [box.y for box in self.boxes]
        for line in self.lines:
            first, last = (
                _piece_of(starts, y) for y in (line.corners[0][1], line.corners[-1][1])
            )
            for piece in range(first, last + 1):
                lines[piece].append(line)
        return [
            (top, end - top, list(self.boxes[i * PIECE : (i + 1) * PIECE]), lines[i])
            for i, (top, end) in enumerate(zip(tops, ends, strict=True))
        ]


def _piece_of(starts: Sequence[int], y: int) -> int:
    from bisect import bisect_right

    return max(bisect_right(starts, y + GAP // 2) - 1, 0) // PIECE


def draw(method: Method) -> Diagram:
    """Return the diagram of a method."""
    lanes = list(method.devices)
    boxes: list[Drawn] = []
    y = TOP
    for row in rows(method):
        boxes.append(_placed(method, row, lanes, y))
        y += boxes[-1].height + GAP
    shown = [box.row for box in boxes]
    drawn = {step for row in shown for step in (row.first, row.last)}
    left_out = len(method.instructions) - 1 - max(drawn, default=-1)
    lines = _lines(method, arrows(method, shown), boxes, lanes)
    return Diagram(lanes, boxes, lines, y, max(left_out, 0))


def svg(method: Method) -> str:
    """Return the diagram as a file of its own."""
    diagram = draw(method)
    return (
        templates()
        .get_template("diagram.svg")
        .render(
            diagram=diagram,
            method=method,
            width=LANE_WIDTH * len(diagram.lanes),
            heading=34,
        )
    )


def percent(value: float) -> str:
    return f"{value:.2f}%"


@lru_cache(maxsize=1)
def templates() -> jinja2.Environment:
    """Return the templates; whatever a file calls things is escaped, everywhere."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("torchtrt_executorch.inspection.drawing"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        percent=percent,
        size=size,
        short=short,
        duration=duration,
        payload=payload,
        counted=counted,
        zip_next=lambda values: zip(values, values[1:], strict=False),
    )
    return environment


def _placed(method: Method, row: Row, lanes: Sequence[str], y: int) -> Drawn:
    says, share, took = described(method, row), 0.0, ""
    if row.nanoseconds is not None and method.times is not None:
        share = min(method.times.share(row.nanoseconds), 1.0)
        took = f"{duration(row.nanoseconds)}, {share:.1%}"
    lane = 100 / len(lanes)
    if row.kind == "copy":
        start, end = _centre(lanes, row.source), _centre(lanes, row.device)
        begin, right = sorted((start, end))
        at = begin, right - begin, y, COPY, start, end
        title = [f"{row.title} · {took}" if took else row.title]
        return Drawn(row, says, title, [], *at, share)
    last = f"–{row.last}" if row.last > row.first else ""
    number = f"#{row.first}{last} " if row.first >= 0 else ""
    title = wrapped(number + row.title, _TITLE)
    title[0] = title[0].removeprefix(number.strip()).strip()
    text = [*([took] if took else []), *wrapped(row.text, _TEXT)]
    height = BOX + LINE * (len(title) + len(text) - 2)
    x = lane * (lanes.index(row.device) + (1 - _BOX_WIDTH) / 2)
    at = x, lane * _BOX_WIDTH, y, height, 0.0, 0.0
    return Drawn(row, says, title, text, *at, share)


def wrapped(text: str, most: int) -> list[str]:
    """Return ``text`` in lines of at most ``most`` characters, cut where names have joints."""
    lines = [""]
    for piece in _PIECES.findall(text):
        for start in range(0, len(piece), most):
            part = piece[start : start + most]
            if len(lines[-1]) + len(part.rstrip()) > most:
                lines.append("")
            lines[-1] += part
    return [line.strip() for line in lines]


def _centre(lanes: Sequence[str], device: str) -> float:
    return 100 / len(lanes) * (lanes.index(device) + 0.5)


def _lines(
    method: Method,
    drawn: Sequence[Arrow],
    boxes: Sequence[Drawn],
    lanes: Sequence[str],
) -> list[Line]:
    lines: list[Line] = []
    told: set[tuple[str, int]] = set()
    used_until: dict[str, list[int]] = {lane: [0] * _TRACKS for lane in lanes}
    last_in_lane = _neighbours(boxes)
    for arrow in sorted(
        drawn, key=lambda drawn_arrow: (drawn_arrow.source, drawn_arrow.target)
    ):
        source, target = boxes[arrow.source], boxes[arrow.target]
        says = _said(method, arrow, source.row, target.row)
        start = _centre(lanes, source.row.device), source.bottom
        if source.row.kind == "copy":
            start = start[0], source.y + source.height // 2
        end = _centre(lanes, target.row.source or target.row.device), target.y
        if target.row.kind == "copy":
            end = end[0], target.y + target.height // 2
        if arrow.target - arrow.source > FAR:
            lines += _stubs(arrow, start, end, says, source.row, target.row, told)
            continue
        if start[0] == end[0] and last_in_lane[target.row.number] == arrow.source:
            lines.append(Line(arrow, (start, end), says))
            continue
        lane = source.row.device
        tracks = used_until[lane]
        free = next((i for i, y in enumerate(tracks) if y <= start[1]), _TRACKS - 1)
        tracks[free] = end[1]
        side = _centre(lanes, lane) + 100 / len(lanes) * (
            _BOX_WIDTH / 2 + 0.02 + 0.018 * free
        )
        down, up = start[1] + 5 + 2 * free, end[1] - 6 - 2 * free
        corners = (start, (start[0], down), (side, down), (side, up), (end[0], up), end)
        lines.append(Line(arrow, corners, says))
    return lines


def _neighbours(boxes: Sequence[Drawn]) -> list[int]:
    """By row, the row before it in the lane where its arrows end."""
    last: dict[str, int] = {}
    neighbours = []
    for box in boxes:
        row = box.row
        neighbours.append(last.get(row.source or row.device, -1))
        last[row.device] = row.number
        if row.source:
            last[row.source] = row.number
    return neighbours


def _stubs(
    arrow: Arrow,
    start: tuple[float, int],
    end: tuple[float, int],
    says: str,
    source: Row,
    target: Row,
    told: set[tuple[str, int]],
) -> list[Line]:
    """Both ends of an arrow; the label of the other end is only drawn at the first arrow of a row."""
    ends = (
        ("leaves", source, f"to {target.called}", (start, (start[0], start[1] + 9))),
        ("arrives", target, f"from {source.called}", ((end[0], end[1] - 11), end)),
    )
    lines = []
    for stub, row, far, corners in ends:
        first = (stub, row.number) not in told
        told.add((stub, row.number))
        lines.append(Line(arrow, corners, says, stub, far if first else ""))
    return lines


def _said(method: Method, arrow: Arrow, source: Row, target: Row) -> str:
    count = len(arrow.values)
    label = f"{count} value{'s' * (count != 1)}, {size(arrow.nbytes)}"
    label += f", from {source.called} to {target.called}"
    if arrow.staged:
        label += "; the delegate stages what is on another device itself"
    return label
