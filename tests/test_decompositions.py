"""What is asked once is what upstream finds, of operators that come later too."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from . import fresh

CODE = """
import torch
from torch._export import utils
from torch.export import decomp_utils, exported_program
from tests.decompositions import ask_once

asked, ask, collect = [], utils._materialize_cpp_cia_ops, utils._collect_all_valid_cia_ops
utils._materialize_cpp_cia_ops = lambda: (asked.append(1), ask())
expected = collect()
print(len(asked) > 10)
asked.clear()
ask_once()
print(utils._collect_all_valid_cia_ops() == expected, len(asked))

library = torch.library.Library("decompositions_test", "DEF")
library.define("twice(Tensor x) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
for module in (utils, decomp_utils, exported_program):
    later = module._collect_all_valid_cia_ops()
    print(sorted(str(each) for each in later - expected), later == collect())
print(len(asked) > 10)
"""

OVERRIDDEN = """
import functools

import torch
from torch._subclasses.fake_impls import op_implementations_dict
from torch.export import exported_program
from tests.decompositions import ask_once

upstream = exported_program._override_composite_implicit_decomp
ask_once()
ours = exported_program._override_composite_implicit_decomp
print(ours is not upstream)


def as_ever(operators):
    implementations = {each: {**each.py_kernels} for each in operators}
    return implementations, {**op_implementations_dict}


def overridden(override, callables):
    before = as_ever(callables)
    with override(callables):
        assert not any(each._dispatch_cache for each in callables)
        kernels, fakes = as_ever(callables)
        torch.nn.functional.silu(torch.ones(2))
    assert as_ever(callables) == before
    assert not any(each._dispatch_cache for each in callables)
    def named(each):
        if isinstance(each, functools.partial):
            bound = {key: named(value) for key, value in each.keywords.items()}
            return named(each.func), [*map(named, each.args)], bound
        if isinstance(each, torch._ops.OpOverload):
            return each
        return getattr(each, "__qualname__", each)

    return (
        {each: {key: named(kernel) for key, kernel in of.items()} for each, of in kernels.items()},
        {each: named(fake) for each, fake in fakes.items()},
        [of[torch._C.DispatchKey.CompositeImplicitAutograd] for of in kernels.values()],
    )


def callables():
    default = exported_program.default_decompositions()
    return exported_program._split_decomp_table_to_cia_and_python_decomp({**default})[0]


with upstream(callables()):
    pass  # it forgets fake ones that others registered, once
for each in range(2):
    print(len(callables()) > 100, overridden(ours, callables())[:2] == overridden(upstream, callables())[:2])
silu, linear = torch.ops.aten.silu.default, torch.ops.aten.linear.default
mine = {linear: lambda *_: 1}
print(overridden(ours, mine) == overridden(upstream, mine))
linear.py_impl(torch._C.DispatchKey.CPU)(lambda *_: 2)
print(overridden(ours, mine) == overridden(upstream, mine))
"""


def run(code: str) -> list[str]:
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    ahead = {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = fresh.run(code, env={**inherited, **ahead}, cwd=sys.prefix, once=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_list_is_upstream_s() -> None:
    later = "['decompositions_test.twice.default'] True"
    assert run(CODE) == ["True", "True 1", *[later] * 3, "True"]


def test_what_overrides_them_is_upstream_s() -> None:
    assert run(OVERRIDDEN) == ["True", *["True True"] * 2, "True", "True"]
