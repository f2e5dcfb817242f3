"""Required symbols of upstream that a patch relies on, checked in source before anything runs.

Reading the code rather than the module keeps a patch whole: all of its anchors, in all of its
modules, are known to hold or not before the first of them is imported. It also sees through
decorators that hide a function's signature. It is the compiled code, which Python keeps: to parse
the sources would take longer than to import them.
"""

from __future__ import annotations

import dis
import inspect
from dataclasses import dataclass
from itertools import pairwise
from types import CodeType

from torchtrt_executorch.overlay.upstream import code


@dataclass(frozen=True)
class Anchor:
    """A definition that a patch needs to find upstream.

    Attributes:
        module: Upstream module, ``torch_tensorrt.dynamo._compiler``.
        name: Function, class, ``Class.method`` or module-level name; empty for only the module.
        parameters: Parameters of the function, or annotated fields of the class, that must exist.
    """

    module: str
    name: str = ""
    parameters: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """Return what isn't there, in words, or None if the anchor holds."""
        try:
            scope = code(self.module)
        except (EOFError, ImportError, OSError, SyntaxError, ValueError) as error:
            return f"{self.module} can't be read: {error}"
        if scope is None:
            return f"no module {self.module}"
        if not self.name:
            return None
        *owners, name = self.name.split(".")
        for owner in owners:
            definition = _definition(scope, owner)
            if definition is None or not _of_class(definition):
                return f"no class {owner} in {self.module}"
            scope = definition
        definition = _definition(scope, name)
        if definition is None and name not in _assigned(scope):
            return f"no {self.name} in {self.module}"
        lacking = {*self.parameters} - {*_parameters(definition)}
        if lacking:
            return f"{self.module}.{self.name} has no {', '.join(sorted(lacking))}"
        return None


def anchors(*texts: str) -> tuple[Anchor, ...]:
    """Return anchors as the manifest writes them, a line each.

    Args:
        texts: ``module``, ``module:name`` or ``module:name(parameter, parameter)``.
    """
    symbols = []
    for text in texts:
        module, _, rest = text.partition(":")
        name, _, parameters = rest.rstrip(")").partition("(")
        symbols.append(
            Anchor(module, name, tuple(filter(None, parameters.split(", "))))
        )
    return tuple(symbols)


def _definition(scope: CodeType, name: str) -> CodeType | None:
    """Return the code of the last function or class of this name in a module's or a class's code."""
    codes = [constant for constant in scope.co_consts if isinstance(constant, CodeType)]
    return {code.co_name: code for code in codes}.get(name)


def _of_class(code: CodeType) -> bool:
    return not code.co_flags & inspect.CO_OPTIMIZED


def _assigned(scope: CodeType) -> set[str]:
    """Return the names that a module or a class binds, by whatever statement."""
    return {
        instruction.argval
        for instruction in dis.get_instructions(scope)
        if instruction.opname == "STORE_NAME"
    }


def _parameters(definition: CodeType | None) -> tuple[str, ...]:
    if definition is None:
        return ()
    if not _of_class(definition):
        named = definition.co_argcount + definition.co_kwonlyargcount
        return definition.co_varnames[:named]
    # Annotations are entered in a dictionary, by name.
    return tuple(
        key.argval
        for key, entered in pairwise(dis.get_instructions(definition))
        if entered.opname == "STORE_SUBSCR"
    )
