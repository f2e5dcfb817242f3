"""A module goes back to what it was, its classes included."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from torchtrt_executorch.overlay.snapshot import Snapshot

SOURCE = """
from collections import OrderedDict
value = 1
class Kept:
    attribute = 1
    @staticmethod
    def static(): return "upstream"
    def method(self): return "upstream"
"""


@pytest.fixture
def module() -> ModuleType:
    module = ModuleType("amended")
    exec(SOURCE, vars(module))
    return module


def test_restored(module: ModuleType) -> None:
    kept, before = module.Kept, dict(vars(module))
    of_class = dict(vars(kept))
    snapshot = Snapshot(module)
    kept.method = kept.static = lambda self=None: "ours"
    kept.added = 1
    del kept.attribute
    module.value, module.added, module.Kept = 2, 3, object
    del module.OrderedDict
    snapshot.restore()
    assert vars(module) == before
    assert dict(vars(kept)) == of_class
    assert (kept.static(), kept().method()) == ("upstream", "upstream")


def test_classes_of_others_are_left_alone(module: ModuleType) -> None:
    class Other:
        value = 1

    module.Other = Other
    snapshot = Snapshot(module)
    Other.value = 2
    snapshot.restore()
    assert Other.value == 2
    assert module.__name__ not in sys.modules
