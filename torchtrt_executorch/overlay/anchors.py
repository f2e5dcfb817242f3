"""Anchors: what a patch relies on in upstream, checked in the source before anything runs.

Reading the source rather than the module keeps a patch whole: all of its anchors, in all of its
modules, are known to hold or not before the first of them is imported. It also sees through
decorators that hide a function's signature.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from typing import Iterator

from torchtrt_executorch.overlay.upstream import source

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Anchor:
    """A definition that a patch needs to find upstream.

    Attributes:
        module: Upstream module, ``torch_tensorrt.dynamo._compiler``.
        name: Function, class, ``Class.method`` or module-level name; empty for the module alone.
        parameters: Parameters of the function, or annotated fields of the class, that must exist.
    """

    module: str
    name: str = ""
    parameters: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """Return what isn't there, in words, or None if the anchor holds."""
        try:
            text = source(self.module)
            if text is None:
                return f"no module {self.module}"
            if not self.name:
                return None
            scope = _scope(text)
        except (OSError, SyntaxError, ValueError) as error:
            return f"{self.module} can't be read: {error}"
        *owners, name = self.name.split(".")
        for owner in owners:
            definition = scope.get(owner)
            if not isinstance(definition, ast.ClassDef):
                return f"no class {owner} in {self.module}"
            scope = _names(definition.body)
        if name not in scope:
            return f"no {self.name} in {self.module}"
        lacking = set(self.parameters) - set(_parameters(scope[name]))
        if lacking:
            return f"{self.module}.{self.name} has no {', '.join(sorted(lacking))}"
        return None


def anchors(*texts: str) -> tuple[Anchor, ...]:
    """Return anchors as the manifest writes them, a line each.

    Args:
        texts: ``module``, ``module:name`` or ``module:name(parameter, parameter)``.
    """
    found = []
    for text in texts:
        module, _, rest = text.partition(":")
        name, _, parameters = rest.rstrip(")").partition("(")
        found.append(Anchor(module, name, tuple(filter(None, parameters.split(", ")))))
    return tuple(found)


@lru_cache(maxsize=64)
def _scope(text: bytes) -> dict[str, ast.stmt]:
    return _names(ast.parse(text).body)


def _names(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    return {name: statement for name, statement in _bindings(body)}


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    for statement in body:
        if isinstance(statement, _Definition):
            yield statement.name, statement
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                yield (alias.asname or alias.name).split(".")[0], statement
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name):
                        yield part.id, statement
        elif isinstance(statement, ast.AnnAssign) and isinstance(
            statement.target, ast.Name
        ):
            yield statement.target.id, statement
        else:  # what stands under if, try, with and match is defined as well
            for field in ("body", "handlers", "cases", "orelse", "finalbody"):
                yield from _bindings(getattr(statement, field, []))


def _parameters(definition: ast.stmt) -> list[str]:
    if isinstance(definition, ast.ClassDef):
        return [
            name
            for name, field in _bindings(definition.body)
            if isinstance(field, ast.AnnAssign)
        ]
    if isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
        arguments = definition.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        return [argument.arg for argument in every]
    return []
