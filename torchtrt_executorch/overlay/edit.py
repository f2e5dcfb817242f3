"""Edits of upstream's source: a place in the syntax tree, and the lines inserted there.

A patch is a diff against upstream. An edit is one hunk of it that keeps nothing of upstream's text: it names a
function, a class or the module, a place in it, and has lines of our own. So one row fits every release in which the
place exists, and the same rows make the module that is imported (:mod:`.edited`) and the diff that is sent upstream
(``make patches``).
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Places, by what they do with ``Edit.code``. Those that end in a name act on the only statement or call of it.
PLACES = {
    "imports": "a statement behind the imports at the top of a module",
    "first": "a statement at the beginning of a body, behind its docstring",
    "last": "a statement at the end of a body",
    "body": "statements in the place of a function's, behind its docstring",
    "decorator": "a decorator, the innermost of a function or class",
    "parameter": "a parameter at the end of a function's, but for ``**kwargs``",
    "before": "a statement before the one that assigns or calls a name",
    "after": "a statement behind the one that assigns or calls a name",
    "call": "an expression around the call of a name: ``{}`` is the call, or ``{args}`` its arguments",
    "value": "an expression around the value assigned to a name: ``{}`` is the value",
    "return": "an expression around the value of each ``return``: ``{}`` is the value",
    "doc": "lines of a docstring, behind its entry of a name",
}
_NAMED = ("before", "after", "call", "value", "doc")
_AROUND = ("call", "value", "return")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)


class EditError(Exception):
    """An edit's place isn't there, or isn't the only one; or what goes there is there already."""


class AppliedError(EditError):
    """The edit's text is already in the source."""


@dataclass(frozen=True)
class Edit:
    """One change of an upstream module's source.

    Attributes:
        module: Upstream module.
        scope: Function, class or ``Class.method`` that is edited; empty for the module itself.
        place: One of :data:`PLACES`, and its name: ``"call post_lowering"``.
        code: The inserted text.
        releases: Per distribution, the releases that it is for; all that the patch is for, unless given.
    """

    module: str
    scope: str
    place: str
    code: str
    releases: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        where = f"{self.module}:{self.scope}" if self.scope else self.module
        return f"{self.place!r} in {where}"


@dataclass(frozen=True)
class _Insertion:
    """Text in the place of ``source[start:end]``, by offsets in UTF-8. Of several at one offset ``rank`` tells the order."""

    start: int
    end: int
    rank: tuple[int, int]
    text: str


# What closes an expression comes before a new statement, and that before what opens an expression.
_CLOSES, _STANDS, _OPENS = range(3)


def edited(source: str, edits: Sequence[Edit]) -> str:
    """Return ``source`` with ``edits``; at one place, later ones go around or after earlier ones.

    Raises:
        EditError: An edit's place isn't there, or isn't the only one, or what goes there is there already.
    """
    tree, data = ast.parse(source), source.encode()
    text = _Text(data)
    insertions: list[_Insertion] = []
    for number, edit in enumerate(edits):
        try:
            scope = _scope(tree, edit.scope)
            if edit.place in ("parameter", "body") and not isinstance(
                scope, _FUNCTIONS
            ):
                raise EditError("it is no function")
            if edit.place == "decorator" and not isinstance(scope, _DEFINITIONS):
                raise EditError("it is no function and no class")
            _check_new(text, scope, edit)
            insertions += _insertions(text, scope, edit, number)
        except EditError as error:
            raise type(error)(f"{edit}: {error}") from None
    _check_apart(insertions)
    for insertion in sorted(
        insertions,
        key=lambda insertion: (insertion.start, insertion.rank),
        reverse=True,
    ):
        data = data[: insertion.start] + insertion.text.encode() + data[insertion.end :]
    return data.decode()


class _Text:
    """Source by lines and columns, which syntax trees count in bytes of UTF-8."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.lines = data.splitlines(keepends=True)
        self._offsets = [0]
        for line in self.lines:
            self._offsets.append(self._offsets[-1] + len(line))

    def line(self, number: int) -> int:
        """Return the offset of a line, from 1 on; after the last that of the end."""
        return self._offsets[min(number, len(self._offsets)) - 1]

    def start(self, node: Any) -> int:
        return self._offsets[node.lineno - 1] + int(node.col_offset)

    def end(self, node: Any) -> int:
        return self._offsets[node.end_lineno - 1] + int(node.end_col_offset)

    def of(self, node: ast.AST) -> str:
        """Return a node's source, or all of it for a module."""
        if isinstance(node, ast.Module):
            return self.data.decode()
        return self.data[self.start(node) : self.end(node)].decode()


def _scope(tree: ast.Module, name: str) -> Any:
    scope: Any = tree
    for part in filter(None, name.split(".")):
        named = [n for n in _statements(scope) if getattr(n, "name", None) == part]
        named = [node for node in named if isinstance(node, _DEFINITIONS)]
        if len(named) != 1:
            raise EditError(f"{len(named)} definitions of {part}")
        scope = named[0]
    return scope


def _statements(scope: Any) -> Iterator[Any]:
    """Yield the statements of a body, with those in its blocks, without those of definitions in it."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for statement in getattr(scope, name, ()):
            yield statement
            if not isinstance(statement, _DEFINITIONS):
                yield from _statements(statement)


def _insertions(
    text: _Text, scope: Any, edit: Edit, number: int
) -> Iterator[_Insertion]:
    place, _, name = edit.place.partition(" ")
    if place not in PLACES or bool(name) is not (place in _NAMED):
        raise ValueError(f"no place {edit.place!r}: {', '.join(PLACES)}")
    if place in _AROUND:
        yield from _around(text, scope, place, name, edit.code, number)
        return
    if place == "parameter":
        yield _parameter(text, scope, edit.code, number)
        return
    if place == "body":
        yield _body(text, scope, edit.code, number)
        return
    if place == "decorator":
        line, column = scope.lineno, scope.col_offset
        number = -number  # a later one goes around
    elif place == "doc":
        line, column = _behind_entry(text, scope, name)
    elif place in _NAMED:
        statement = _only_statement(scope, name)
        line, column = statement.lineno, statement.col_offset
        line = line if place == "before" else int(statement.end_lineno) + 1
    else:
        line, column = _in_body(scope, place)
    lines = _indented(edit.code, column)
    offset = text.line(line)
    if offset and not text.data[:offset].endswith(b"\n"):
        lines = f"\n{lines}"
    if place == "last" and isinstance(scope, ast.ClassDef):
        lines = f"\n{lines}"
    yield _Insertion(offset, offset, (_STANDS, number), lines)


def _in_body(scope: Any, place: str) -> tuple[int, int]:
    """Return the line and column of a new statement in a body."""
    body = scope.body
    if not body:
        return 1, 0
    if place == "imports":
        imports = [n for n in body if isinstance(n, (ast.Import, ast.ImportFrom))]
        if not isinstance(scope, ast.Module) or not imports:
            raise EditError("no imports at the top of a module")
        return int(imports[-1].end_lineno or 0) + 1, 0
    if place == "last":
        return body[-1].end_lineno + 1, body[-1].col_offset
    if ast.get_docstring(scope, clean=False) is not None:
        return body[0].end_lineno + 1, body[0].col_offset
    decorators = getattr(body[0], "decorator_list", ())
    return min(n.lineno for n in (body[0], *decorators)), body[0].col_offset


def _behind_entry(text: _Text, scope: Any, name: str) -> tuple[int, int]:
    """Return the line after a docstring's entry of ``name`` and its indented lines, and the entry's column."""
    if ast.get_docstring(scope, clean=False) is None:
        raise EditError("it has no docstring")
    docstring = scope.body[0]
    lines = [line.decode() for line in text.lines]
    entries = [
        number
        for number in range(docstring.lineno, docstring.end_lineno)
        if re.match(rf"\s*{re.escape(name)}\b", lines[number - 1])
    ]
    if len(entries) != 1:
        raise EditError(f"{len(entries)} entries of {name} in its docstring")
    (number,) = entries
    column = len(lines[number - 1]) - len(lines[number - 1].lstrip())
    while lines[number].startswith(" " * (column + 1)):
        number += 1
    return number + 1, column


def _only_statement(scope: Any, name: str) -> Any:
    """Return the only statement that assigns or calls ``name``, without those that hold statements."""
    statements = [
        statement
        for statement in _statements(scope)
        if not hasattr(statement, "body")
        and (name in _targets(statement) or any(_calls(statement, name)))
    ]
    if len(statements) != 1:
        raise EditError(f"{len(statements)} statements that assign or call {name}")
    return statements[0]


def _targets(statement: Any) -> list[str]:
    targets = getattr(statement, "targets", None) or [
        getattr(statement, "target", None)
    ]
    return [ast.unparse(target) for target in targets if target is not None]


def _calls(node: Any, name: str) -> Iterator[ast.Call]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and ast.unparse(inner.func) == name:
            yield inner


def _around(
    text: _Text, scope: Any, place: str, name: str, code: str, number: int
) -> Iterator[_Insertion]:
    if place == "call":
        nodes: list[Any] = [
            call
            for statement in getattr(scope, "body", ())
            for call in _calls(statement, name)
        ]
    elif place == "value":
        nodes = [s.value for s in _statements(scope) if name in _targets(s)]
    else:
        nodes = [s.value for s in _statements(scope) if isinstance(s, ast.Return)]
    if None in nodes or not nodes or (name and len(nodes) != 1):
        what = {"call": "calls of", "value": "assignments to", "return": "returns"}
        raise EditError(f"{len(nodes)} {what[place]} {name}".rstrip())
    for node in nodes:
        start, end = text.start(node), text.end(node)
        if "{args}" in code:
            before, behind = code.split("{args}")
            opened = text.data.index(b"(", text.end(node.func)) + 1
            if text.data[opened : opened + 1] == b"\n":
                before = before.rstrip()
            yield _Insertion(start, opened, (_OPENS, -number), before)
            yield _Insertion(end - 1, end, (_CLOSES, number), behind)
        else:
            before, behind = code.split("{}")
            yield _Insertion(start, start, (_OPENS, -number), before)
            yield _Insertion(end, end, (_CLOSES, number), behind)


def _body(text: _Text, scope: Any, code: str, number: int) -> _Insertion:
    line, column = _in_body(scope, "first")
    last = scope.body[-1]
    if line > last.end_lineno or line <= scope.lineno:
        raise EditError("it has no body of its own lines")
    end = text.line(last.end_lineno + 1)
    lines = _indented(code, column)
    return _Insertion(text.line(line), end, (_STANDS, number), lines)


def _indented(code: str, column: int) -> str:
    return textwrap.indent(textwrap.dedent(code).strip("\n") + "\n", " " * column)


def _check_apart(insertions: Sequence[_Insertion]) -> None:
    """Check that nothing goes where a body is replaced.

    Raises:
        EditError: Something does.
    """
    for insertion in insertions:
        if insertion.rank[0] == _STANDS and insertion.end > insertion.start:
            for other in insertions:
                if (
                    other is not insertion
                    and insertion.start <= other.start < insertion.end
                ):
                    raise EditError("another edit replaces the body that one is in")


def _parameter(text: _Text, scope: Any, code: str, number: int) -> _Insertion:
    arguments = scope.args
    before = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    if not before and arguments.vararg is None:
        raise EditError("it has no parameters")
    last = before[-1] if before else arguments.vararg
    if arguments.kwonlyargs:
        default = arguments.kw_defaults[-1]
    else:
        last = arguments.vararg or last
        default = (
            arguments.defaults[-1] if last in before and arguments.defaults else None
        )
    node = default or last.annotation or last
    offset = text.end(node)
    rest = text.data[offset : text.line(node.end_lineno + 1)]
    if not rest.startswith(b",") or rest[1:].split(b"#")[0].strip():
        return _Insertion(offset, offset, (_CLOSES, number), f", {code}")
    line = text.lines[last.lineno - 1]
    pad = line[: len(line) - len(line.lstrip())].decode()
    offset += len(rest)
    return _Insertion(offset, offset, (_STANDS, number), f"{pad}{code},\n")


def _check_new(text: _Text, scope: Any, edit: Edit) -> None:
    """Check that an edit isn't there already, as it is where upstream has merged it.

    Raises:
        AppliedError: It is.
    """
    place = edit.place.partition(" ")[0]
    here = text.of(scope)
    if place == "parameter":
        names = [node.arg for node in ast.walk(scope.args) if isinstance(node, ast.arg)]
        there = re.split(r"\W", edit.code.strip(), maxsplit=1)[0] in names
    elif place in _AROUND:
        opening = re.split("{args}|{}", edit.code)[0].rstrip()
        there = opening in here and bool(re.search(r"\w", opening))
    else:
        if place == "decorator":
            first = min(node.lineno for node in (scope, *scope.decorator_list))
            here = text.data[text.line(first) : text.start(scope)].decode()
        there = f"\n{_stripped(edit.code)}\n" in f"\n{_stripped(here)}\n"
    if there:
        raise AppliedError("it is there already")


def _stripped(code: str) -> str:
    return "\n".join(filter(None, map(str.strip, code.splitlines())))
