"""The settings that say that a program is compiled for ExecuTorch.

``target_executorch`` keeps out of TensorRT what needs an output allocator there, and
``executorch_allocator_routing`` says how that is decided
(:mod:`~torch_tensorrt.dynamo._allocator_routing`); ``executorch_build_fallback`` keeps out what
can't be built (:mod:`~torch_tensorrt.dynamo._fallback`). Here is how they are spelled,
checked, and carried from a public function to the settings that upstream builds.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Callable

ROUTINGS = ["target"]
"""What ``executorch_allocator_routing`` takes; routing by node adds its own."""

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "target_executorch": False,
        "executorch_allocator_routing": "target",
        "executorch_build_fallback": False,
    }
)

IN_PYTORCH = "torchtrt_executorch_in_pytorch"
"""In the metadata of a node that TensorRT was found not to take in the engine that it got into: why."""

DOC = """
target_executorch (bool): Compile for ExecuTorch, whose runtime has no output allocator to
    give to a TensorRT engine: operators whose converters need one, such as ``nonzero`` and
    indexing with a boolean mask, run in PyTorch. Can't be combined with
    ``require_full_compilation``. Default is False. (pytorch/TensorRT#4355)
executorch_allocator_routing (str): What leaves TensorRT under ``target_executorch``.
    ``"target"``: all nodes of an operator that has at least one such converter.
    ``"node"``: the nodes for which such a converter would be selected, so that
    ``aten.index.Tensor`` with integer indices stays in TensorRT. Default is ``"target"``.
executorch_build_fallback (bool): Under ``target_executorch``, run in PyTorch what TensorRT can't
    convert or build, with one warning that names the operators and the reasons, rather than
    raise. Default is False.
"""

_requested: ContextVar[Mapping[str, Any]] = ContextVar("_requested", default=DEFAULTS)


def check(
    target_executorch: object,
    executorch_allocator_routing: object,
    executorch_build_fallback: object = False,
    *,
    require_full_compilation: object = False,
) -> None:
    """Check the values of the settings, whoever gives them.

    Raises:
        TypeError: ``target_executorch`` or ``executorch_build_fallback`` is not a bool.
        ValueError: ``executorch_allocator_routing`` is not one of :data:`ROUTINGS`,
            ``target_executorch`` and ``require_full_compilation`` are both set, or
            ``executorch_build_fallback`` is without ``target_executorch``.
    """
    for name, value in (
        ("target_executorch", target_executorch),
        ("executorch_build_fallback", executorch_build_fallback),
    ):
        if not isinstance(value, bool):
            raise TypeError(
                f"{name}={value!r} is a {type(value).__name__}; it takes True or False"
            )
    if executorch_allocator_routing not in ROUTINGS:
        raise ValueError(
            f"executorch_allocator_routing={executorch_allocator_routing!r} is not a routing; "
            f"it takes {' or '.join(map(repr, ROUTINGS))}"
        )
    if target_executorch and require_full_compilation:
        raise ValueError(
            "target_executorch=True runs operators that need an output allocator in PyTorch, and "
            "require_full_compilation=True forbids that: set only one of the two"
        )
    if executorch_build_fallback and not target_executorch:
        raise ValueError(
            "executorch_build_fallback=True is for programs that are compiled with "
            "target_executorch=True: set both"
        )


def check_names(
    function: Callable[..., Any],
    kwargs: Mapping[str, Any],
    *,
    others: Container[str] = (),
    like: Collection[str] = (),
) -> None:
    """Check that ``function``, which ignores what it doesn't know, knows all of ``kwargs``.

    Args:
        function: It hands its ``**kwargs`` to ``torch_tensorrt.dynamo``'s ``trace`` and ``compile``.
        kwargs: What it is called with.
        others: Names that somebody around it knows.
        like: Complain of names that are nearly one of these alone; of all without any.

    Raises:
        TypeError: It doesn't; with the nearest name.
    """
    if like:
        near = [n for n in kwargs if difflib.get_close_matches(n, like, cutoff=0.8)]
        kwargs = {name: kwargs[name] for name in near if name not in like}
    if not kwargs:
        return
    from torch_tensorrt.dynamo import _compiler, _tracer

    functions = function, _compiler.compile, _tracer.trace
    known = {name for each in functions for name in inspect.signature(each).parameters}
    # Deprecated ones are looked up by name.
    sources = inspect.getsource(_compiler) + inspect.getsource(_tracer)
    for name in kwargs:
        if name not in known and name not in others and f'"{name}"' not in sources:
            close = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise TypeError(
                f"{function.__name__} has no parameter {name!r}, which would be ignored{hint}"
            )


def requested(setting: str) -> Any:
    """Return the value that ``setting`` has by default, here and now.

    Within :func:`request` it is the one that was asked for.
    """
    return _requested.get()[setting]


@contextmanager
def request(**settings: Any) -> Iterator[None]:
    """Make ``settings`` the defaults of all compilation settings built within.

    Upstream's entry points build their settings from a fixed list of parameters; this way the
    two get there with no change to upstream's bodies.
    """
    token = _requested.set(settings)
    try:
        yield
    finally:
        _requested.reset(token)


def forward(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    target_executorch: bool = False,
    executorch_allocator_routing: str = "target",
    executorch_build_fallback: bool = False,
) -> Any:
    """Check the settings before ``function`` starts, and give it those that differ from upstream.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around functions that hand their
    ``**kwargs`` to one that takes the settings.
    """
    call = inspect.signature(function).bind_partial(*args, **kwargs)
    # torch.compile compiles what it can: upstream ignores require_full_compilation there.
    partial = call.arguments.get("ir") == "torch_compile"
    given = {
        "target_executorch": target_executorch,
        "executorch_allocator_routing": executorch_allocator_routing,
        "executorch_build_fallback": executorch_build_fallback,
    }
    full = kwargs.get("require_full_compilation") and not partial
    if not partial:
        check_names(function, kwargs, like=() if target_executorch else DEFAULTS)
    check(**given, require_full_compilation=full)
    changed = {name: value for name, value in given.items() if value != DEFAULTS[name]}
    return function(*args, **kwargs, **changed)


def refuse(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Refuse the settings where they can't be honoured: one engine has no PyTorch around it.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`.

    Raises:
        ValueError: One of the settings was passed.
    """
    for setting in DEFAULTS:
        if setting in kwargs:
            raise ValueError(
                f"{function.__name__} takes no {setting}: it makes a single TensorRT engine, in "
                "which nothing can run in PyTorch. Use torch_tensorrt.dynamo.compile"
            )
    return function(*args, **kwargs)
