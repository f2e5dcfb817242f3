"""Scripts beside this one, run where Triton's interpreter runs the kernels."""

from __future__ import annotations

import json
import os
from types import ModuleType, SimpleNamespace
from typing import Any

from ... import fresh
from ...loading import ROOT

_CODE = """
import runpy, sys
from tests.backends.cuda.interpreted import quickly
quickly()
for path in sys.argv[1:]:
    runpy.run_path(path, run_name="__main__")
"""


def run(*scripts: ModuleType) -> list[Any]:
    """Return what each of them prints in the last line, all in one process."""
    paths = [str(each.__file__) for each in scripts]
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = fresh.run(_CODE, *paths, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()[-len(scripts) :]]


def quickly() -> None:
    """Have a launch replace Triton's language once, not for each function that its kernel calls.

    And make a table of NumPy's types once.
    """
    from triton.runtime import interpreter

    replace, replaced = interpreter._patch_lang, []

    def replace_once(function: Any) -> Any:
        if any(each is function.__globals__ for each in replaced):
            return SimpleNamespace(restore=lambda: None)
        replaced.append(function.__globals__)
        scope = replace(function)

        def restore() -> None:
            replaced.clear()
            scope.restore()

        return SimpleNamespace(restore=restore)

    interpreter._patch_lang = replace_once
    find, found = interpreter._get_np_dtype, {}

    def find_once(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in found:
            found[name] = find(kind)
        return found[name]

    interpreter._get_np_dtype = find_once
