"""Apply edits to a module that is already executing when the overlay is activated.

Its functions will exist once it has executed, before anything can import them from it; they get the code of the edited source, and keep
their identity: no class is created, or registered, a second time.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torchtrt_executorch.overlay.edit import Edit

#: Parameters aren't, they have defaults, which are no code; nor are docstrings.
PLACES = ("imports", "first", "last", "body", "decorator", "before", "after", "call", "value", "return")  # fmt: skip
#: Of these, the ones that can be at a module's scope, where no function's code can be replaced.
_OF_MODULE = ("imports", "first", "last", "value")


def when_complete(module: ModuleType, hook: Callable[[ModuleType], None]) -> None:
    """Run ``hook`` on ``module`` when it is first looked into after it has executed."""

    kind = type(module)

    class Incomplete(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            spec = super().__getattribute__("__spec__")
            if name.startswith("__") or spec._initializing:
                return super().__getattribute__(name)
            self.__class__ = kind  # type: ignore[assignment]
            hook(self)
            return getattr(self, name)

    module.__class__ = Incomplete


def can_edit(edits: Iterable[Edit]) -> bool:
    """Whether a module that has executed can have ``edits``."""
    return all(
        edit.place.partition(" ")[0] in (PLACES if edit.scope else _OF_MODULE)
        for edit in edits
    )


def edit_live(module: ModuleType, edits: Sequence[Edit], code: CodeType) -> None:
    """Apply ``edits`` to a module that has executed.

    Args:
        module: Just executed, as upstream has it.
        edits: Edits that :func:`can_edit` supports.
        code: Code object of the edited source.
    """
    for edit in edits:
        owner, function = _find(module, edit.scope)
        place = edit.place.partition(" ")[0]
        if place == "decorator":
            _decorate(module, owner, edit)
        elif isinstance(function, FunctionType):
            function.__code__ = _code(code, edit.scope)
        elif place in ("imports", "first", "last"):  # of a class or the module
            names: dict[str, Any] = {}
            exec(textwrap.dedent(edit.code), vars(module), names)
            for name, value in names.items():
                setattr(function, name, value)
        elif place == "value" and function is module:
            name = edit.place.partition(" ")[2]
            code_of_value = textwrap.dedent(edit.code).replace("{}", name)
            setattr(module, name, eval(code_of_value, vars(module)))
        else:
            raise ValueError(f"{edit} can't be edited once it has executed")


def _find(module: ModuleType, scope: str) -> tuple[Any, Any]:
    """Return the owner and the object of a scope; a function without its wrappers."""
    owner: Any = module
    value: Any = module
    for name in filter(None, scope.split(".")):
        owner, value = value, vars(value)[name]
        value = getattr(value, "__func__", value)
    if callable(value) and not isinstance(value, (type, ModuleType)):
        value = _undecorated(value, scope.rpartition(".")[2])
    return owner, value


def _undecorated(function: Any, name: str) -> Any:
    """Return the function that a decorator has closed over; itself where none has."""
    if isinstance(function, FunctionType) and function.__code__.co_name == name:
        return function
    function = inspect.unwrap(function)
    if function.__code__.co_name == name:
        return function
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    return next(c for c in cells if isinstance(c, FunctionType) and c.__code__.co_name == name)  # fmt: skip


def _decorate(module: ModuleType, owner: Any, edit: Edit) -> None:
    name = edit.scope.rpartition(".")[2]
    attribute = vars(owner)[name]
    result = getattr(attribute, "__func__", attribute)
    for line in reversed(textwrap.dedent(edit.code).strip().splitlines()):
        result = eval(line.removeprefix("@"), vars(module))(result)
    kind = (
        type(attribute) if isinstance(attribute, (classmethod, staticmethod)) else None
    )
    setattr(owner, name, kind(result) if kind else result)


def _code(code: CodeType, scope: str) -> CodeType:
    for name in scope.split("."):
        code = next(c for c in _codes(code) if c.co_name == name)
    return code


def _codes(code: CodeType) -> Iterator[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))
