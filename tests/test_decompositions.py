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
print(len(asked) > 20)
asked.clear()
ask_once()
print(utils._collect_all_valid_cia_ops() == expected, len(asked))

library = torch.library.Library("decompositions_test", "DEF")
library.define("twice(Tensor x) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
for module in (utils, decomp_utils, exported_program):
    later = module._collect_all_valid_cia_ops()
    print(sorted(str(each) for each in later - expected), later == collect())
print(len(asked) > 20)
"""


def test_the_list_is_upstream_s() -> None:
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    ahead = {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = fresh.run(CODE, env={**inherited, **ahead}, cwd=sys.prefix)
    assert done.returncode == 0, done.stderr
    later = "['decompositions_test.twice.default'] True"
    assert done.stdout.splitlines() == ["True", "True 1", *[later] * 3, "True"]
