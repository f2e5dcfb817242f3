"""PyTorch's operators that decompose by themselves: each lowering lists and overrides them several times.

Upstream asks the dispatcher for all of them once per namespace, some seventy times for one list, and
to have a lowering leave them whole makes 12,000 functions, which it forgets after it: half of what
lowering a small model takes. Here it lists them again when there may be others, and keeps what it made.
"""

from __future__ import annotations

import functools
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: What upstream's override uses: what it changes is known to be the kernels and the fake ones.
_OVERRIDES = {
    "py_kernels",
    "_dispatch_cache",
    "register_op_impl",
    "_deregister_op_impl",
}


def ask_once() -> None:
    """Have PyTorch list them once, and make what overrides one of them once, in this process."""
    import torch
    from torch._export import utils
    from torch.export import decomp_utils, exported_program

    collect = _asked_once(utils)
    for module in (utils, decomp_utils, exported_program):
        module._collect_all_valid_cia_ops = collect
    # It annotates 12,000 functions per list; typing's keeps what it has made.
    torch._ops.Callable = typing.Callable
    override = getattr(exported_program, "_override_composite_implicit_decomp", None)
    code = getattr(getattr(override, "__wrapped__", None), "__code__", None)
    if code is not None and {*code.co_names} >= _OVERRIDES:
        exported_program._override_composite_implicit_decomp = _made_once(override)


def _asked_once(utils: Any) -> Callable[[], Any]:
    """Return what lists them as upstream does, again only if there is an operator or a module more."""
    import torch

    ask, collect = utils._materialize_cpp_cia_ops, utils._collect_all_valid_cia_ops
    asked = False
    found: Any = None

    def ask_unless_asked() -> None:
        if not asked:
            ask()

    def there_are() -> Any:
        registered = torch._C._dispatch_get_registrations_for_dispatch_key(
            "CompositeImplicitAutograd"
        )
        spaces = {name: len(vars(getattr(torch.ops, name))) for name in torch.ops._dir}
        return registered, spaces, len(sys.modules)

    @functools.wraps(collect)
    def collect_once() -> Any:
        nonlocal asked, found
        if found is None or found[0] != there_are():
            ask()
            asked = True
            try:
                operators = collect()
            finally:
                asked = False
            found = there_are(), operators
        return found[1]

    utils._materialize_cpp_cia_ops = ask_unless_asked
    return collect_once


def _made_once(override: Any) -> Any:
    """Return upstream's override, which keeps what it makes of the kernels that an operator has."""
    import torch
    from torch._subclasses.fake_impls import op_implementations_dict as fakes

    decomposing = torch._C.DispatchKey.CompositeImplicitAutograd
    made: dict[Any, tuple[Any, ...]] = {}

    @functools.wraps(override)
    @contextmanager
    def with_what_was_made(callables: dict[Any, Any]) -> Iterator[None]:
        changed = []
        for operator, decomposed in callables.items():
            kernels, fake = operator.py_kernels, fakes.get(operator)
            known = made.get(operator)
            if known is None or known[0] != kernels or known[1] is not fake:
                known = {**kernels}, fake
                with override({operator: decomposed}):
                    known += ({**operator.py_kernels}, fakes.get(operator))
                made[operator] = known
            changed.append((operator, decomposed, known))
        try:
            for operator, decomposed, (_, _, kernels, fake) in changed:
                _have(operator, kernels)
                operator.py_kernels[decomposing] = decomposed
                fakes[operator] = fake
            yield
        finally:
            for operator, _, (kernels, *_) in changed:
                _have(operator, kernels)
                fakes.pop(operator, None)

    return with_what_was_made


def _have(operator: Any, kernels: dict[Any, Any]) -> None:
    operator.py_kernels.clear()
    operator.py_kernels.update(kernels)
    operator._dispatch_cache.clear()
