"""Validate compilation arguments for ExecuTorch, and keep attention masks and input names."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch.export.graph_signature import InputKind


def check_argument_names(
    function: str, kwargs: Mapping[str, Any], own: Iterable[str] = ()
) -> None:
    """Check that a function, which ignores unknown keywords, has parameters for all of ``kwargs``.

    Args:
        function: Its name. It hands its ``**kwargs`` to ``torch_tensorrt.dynamo``'s ``trace`` and ``compile``.
        kwargs: Keyword arguments that aren't its parameters.
        own: Names that it takes.

    Raises:
        TypeError: It doesn't, with the nearest name. Without ``target_executorch`` of names that are nearly
            one of the settings that are only for ExecuTorch.
    """
    from torch_tensorrt.dynamo import _compiler, _tracer

    functions = _compiler.compile, _tracer.trace
    known = {
        name
        for function in functions
        for name in inspect.signature(function).parameters
    }
    known |= {*own}
    if kwargs.get("target_executorch") is not True:
        settings = [name for name in known if "executorch" in name]
        near = functools.partial(difflib.get_close_matches, n=1, cutoff=0.8)
        kwargs = {name: None for name in kwargs if near(name, settings)}
    if not kwargs.keys() - known:
        return
    # Deprecated ones are looked up by name.
    sources = inspect.getsource(_compiler) + inspect.getsource(_tracer)
    for name in kwargs:
        if name not in known and f'"{name}"' not in sources:
            close = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise TypeError(
                f"{function} has no parameter {name!r}, which would be ignored{hint}"
            )


def keep_masks(compile: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``compile`` so that it doesn't treat attention masks as causal for ExecuTorch, unless asked to.

    Upstream's default treats every mask as causal, also one of padding.
    """

    @functools.wraps(compile)
    def compile_masks(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("target_executorch") is True:
            kwargs.setdefault("attn_bias_is_causal", False)
        return compile(*args, **kwargs)

    return compile_masks


def keep_input_names(compile: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``compile`` so that the compiled module's inputs keep the program's names.

    So do ``input`` and ``range``: a graph can't name a node like a builtin. Calls by position are unchanged.
    """

    @functools.wraps(compile)
    def compile_named(exported_program: Any, *args: Any, **kwargs: Any) -> Any:
        compiled = compile(exported_program, *args, **kwargs)
        inputs = compiled.graph.find_nodes(op="placeholder")
        names = [
            spec.arg.name
            for spec in exported_program.graph_signature.input_specs
            if spec.kind is InputKind.USER_INPUT
        ]
        if len(names) == len(inputs):
            for node, name in zip(inputs, names, strict=True):
                node.target = name
            compiled.recompile()
        return compiled

    return compile_named
