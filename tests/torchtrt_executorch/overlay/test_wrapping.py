"""Wrappers that add keywords and otherwise look and pickle like what they wrap."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest

from torchtrt_executorch.overlay.wrapping import undecorated, wrapped


def plain(a: int, *, b: int = 2, **rest: Any) -> tuple[Any, ...]:
    """Return everything.

    Args:
        a: first.
    """
    return a, b, rest


def strict(a: int) -> int:
    """Return it."""
    return a


def hide(function: Any) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def around(function: Any, args: Any, kwargs: Any, *, added: str = "none") -> Any:
    return added, function(*args, **kwargs)


original, hidden = plain, hide(plain)
plain = wrapped(plain, around, doc="added: ours.")


def test_added_keyword() -> None:
    assert plain(1) == ("none", (1, 2, {}))
    assert plain(1, b=3, added="x", c=4) == ("x", (1, 3, {"c": 4}))


def test_looks_like_the_original() -> None:
    assert str(inspect.signature(plain)) == (
        "(a: 'int', *, b: 'int' = 2, added: 'str' = 'none', **rest: 'Any') -> 'tuple[Any, ...]'"
    )
    assert (
        inspect.getdoc(plain)
        == "Return everything.\n\nArgs:\n    a: first.\n\nadded: ours."
    )
    assert inspect.unwrap(plain) is original
    assert pickle.loads(pickle.dumps(plain)) is plain


def test_without_rest() -> None:
    ours = wrapped(strict, around)
    assert list(inspect.signature(ours).parameters) == ["a", "added"]
    assert ours(1, added="x") == ("x", 1)
    assert ours.__doc__ == strict.__doc__


def test_function_that_hides_its_signature() -> None:
    assert undecorated(hidden) is original
    ours = wrapped(hidden, around, like=undecorated(hidden))
    assert ours.__qualname__ == "plain"
    assert "added" in inspect.signature(ours).parameters
    assert ours(1) == ("none", (1, 2, {}))
    assert ours.__wrapped__ is hidden


def test_name_that_is_taken() -> None:
    with pytest.raises(ValueError, match="added"):
        wrapped(plain, around)


def test_nothing_behind() -> None:
    with pytest.raises(ValueError, match="0 functions"):
        undecorated(strict)
