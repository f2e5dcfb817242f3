"""Write a patch of upstream's C++ from our lines and the names that they stand beside.

    python tools/cpp_patch.py TREE [EDITS]

``TREE`` is a checkout of pytorch/TensorRT; what is printed, ``git apply`` takes there. ``EDITS``
(``cpp_edits/TensorRT-4328.edits`` by default) is the commit message, a line ``---``, and for each
file its path and its insertions:

    @@ after EngineHandle: inflight_pending
    +  bool host_staging_logged = false;

A place is a definition with a body, in braces, and the one line of it that has all the names. Lines
are only added, ``before`` that line or ``after`` it, between whole statements. Nothing of upstream's
text is kept, so that one file serves every release whose definitions have these names.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

EDITS = Path(__file__).resolve().parent / "cpp_edits" / "TensorRT-4328.edits"
_IGNORED = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\[^'\n]+|[^'\\\n])'""", re.S
)


class EditError(ValueError):
    """A place that isn't there, or isn't the only one."""


@dataclass
class Insertion:
    """Lines that are added beside one line of a definition."""

    after: bool
    scope: str
    names: tuple[str, ...]
    lines: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        where = "after" if self.after else "before"
        return f"{where} {self.scope}: {' '.join(self.names)}"


@dataclass
class CppPatch:
    """A commit message, and insertions by path."""

    message: str
    files: dict[str, list[Insertion]]

    def diff(self, tree: Path) -> str:
        """Return the unified diff against the files of ``tree``.

        Raises:
            EditError: A file, or the place of an insertion, isn't there, or isn't the only one.
        """
        parts = []
        for path, insertions in self.files.items():
            if not (tree / path).is_file():
                raise EditError(f"{tree} has no {path}")
            before = (tree / path).read_text(encoding="utf-8")
            after = edited(before, insertions, path)
            lines = difflib.unified_diff(
                before.splitlines(keepends=True),
                after.splitlines(keepends=True),
                f"a/{path}",
                f"b/{path}",
            )
            parts.append(f"diff --git a/{path} b/{path}\n{''.join(lines)}")
        return "".join(parts)


def parse(text: str) -> CppPatch:
    """Read a file of edits.

    Raises:
        EditError: It has a line that is neither a path, a place nor an insertion.
    """
    message, _, body = text.partition("\n---\n")
    patch = CppPatch(message, {})
    insertions: list[Insertion] | None = None
    for line in body.splitlines():
        place = re.fullmatch(r"@@ (after|before) ([\w:~]+): (\w+(?: \w+)*)", line)
        if place and insertions is not None:
            where, scope, names = place.groups()
            insertions.append(Insertion(where == "after", scope, tuple(names.split())))
        elif line.startswith("+") and insertions:
            insertions[-1].lines.append(line[1:])
        elif line and line[0] not in "@+":
            insertions = patch.files.setdefault(line, [])
        elif line:
            raise EditError(f"{line!r} is neither a path, a place nor an insertion")
    return patch


def edited(source: str, insertions: list[Insertion], path: str) -> str:
    """Return ``source`` with all insertions; those beside one line keep their order.

    Raises:
        EditError: The place of an insertion isn't there, or isn't the only one.
    """
    code = _IGNORED.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), source)
    lines = source.splitlines(keepends=True)
    added: dict[int, list[str]] = {}
    for insertion in insertions:
        try:
            index = _line(code, insertion)
        except EditError as error:
            raise EditError(f"{path}: {insertion}: {error}") from None
        added.setdefault(index, []).extend(f"{line}\n" for line in insertion.lines)
    return "".join(
        line
        for index, kept in enumerate([*lines, ""])
        for line in (*added.get(index, ()), kept)
    )


def _line(code: str, insertion: Insertion) -> int:
    """Return the index of the line that an insertion goes before."""
    begin, end = _body(code, insertion.scope)
    first = code.count("\n", 0, begin)
    lines = code.split("\n")
    found = [
        index
        for index in range(first, code.count("\n", 0, end) + 1)
        if set(insertion.names) <= set(re.findall(r"\w+", lines[index]))
    ]
    if len(found) != 1:
        raise EditError(f"{len(found) or 'no'} lines have these names, one must")
    index = found[0] + insertion.after
    above = "".join(lines[first:index]).rstrip()
    if above[-1:] not in ("{", "}", ";", ":"):
        raise EditError("the line is in the middle of a statement")
    return index


def _body(code: str, name: str) -> tuple[int, int]:
    """Return where the body of the definition of ``name`` begins and ends."""
    bodies = [
        found.end()
        for found in re.finditer(rf"(?<![\w:~]){re.escape(name)}\b[^;{{}}]*\{{", code)
    ]
    if len(bodies) != 1:
        raise EditError(f"{name} has {len(bodies) or 'no'} definitions, one must be")
    depth, begin = 1, bodies[0]
    for brace in re.finditer(r"[{}]", code[begin:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return begin, begin + brace.start()
    raise EditError(f"the definition of {name} has no end")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tree", type=Path, help="a checkout of pytorch/TensorRT")
    parser.add_argument("edits", type=Path, nargs="?", default=EDITS)
    arguments = parser.parse_args()
    try:
        patch = parse(arguments.edits.read_text(encoding="utf-8"))
        diff = patch.diff(arguments.tree)
    except EditError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Subject: [PATCH] {patch.message}\n---\n{diff}", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
