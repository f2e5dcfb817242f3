"""Wrappers around upstream's public functions that still look and pickle like upstream's.

``wrapt`` would do the wrapping, but what it returns can't be pickled. A plain function that
has its model's module and qualified name pickles by that name.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

_VARIADIC = inspect.Parameter.VAR_KEYWORD
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def wrapped(
    function: Callable[..., Any],
    around: Callable[..., Any],
    *,
    like: Callable[..., Any] | None = None,
    doc: str = "",
) -> Callable[..., Any]:
    """Return a function that calls ``around`` in place of ``function``.

    Args:
        function: What is wrapped.
        around: Called as ``around(function, args, kwargs, **added)``. Its keyword-only parameters
            become parameters of the result: they are taken out of ``kwargs`` and, where the
            caller leaves them out, have the defaults that ``around`` gives them.
        like: The function that gives the result its name, docstring and signature, where
            ``function`` hides them; see :func:`undecorated`.
        doc: Appended to the docstring, for the added parameters.

    Raises:
        ValueError: ``function`` already has a parameter of that name.
    """
    model = function if like is None else like
    added = [
        parameter
        for parameter in inspect.signature(around).parameters.values()
        if parameter.kind is _KEYWORD
    ]
    signature = _extended(inspect.signature(model), added)

    @functools.wraps(model)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = {p.name: kwargs.pop(p.name) for p in added if p.name in kwargs}
        return around(function, args, kwargs, **given)

    vars(wrapper).update(__wrapped__=function, __signature__=signature)
    if doc and model.__doc__:
        wrapper.__doc__ = (
            f"{inspect.cleandoc(model.__doc__)}\n\n{inspect.cleandoc(doc)}\n"
        )
    return wrapper


def undecorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function behind a decorator that did not use ``functools.wraps``.

    One that did, as :func:`wrapped` does, hides nothing: its result is returned itself.

    Raises:
        ValueError: ``function`` does not close over exactly one function.
    """
    if hasattr(function, "__wrapped__"):
        return function
    contents = (cell.cell_contents for cell in function.__closure__ or ())
    functions = [content for content in contents if inspect.isfunction(content)]
    if len(functions) != 1:
        raise ValueError(
            f"{function.__qualname__} closes over {len(functions)} functions, not over the one "
            "that it decorates"
        )
    return functions[0]


def _extended(
    signature: inspect.Signature, added: list[inspect.Parameter]
) -> inspect.Signature:
    own = list(signature.parameters.values())
    end = len(own) - (bool(own) and own[-1].kind is _VARIADIC)
    return signature.replace(parameters=[*own[:end], *added, *own[end:]])
