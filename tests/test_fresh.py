"""What is forked after ``import torch`` is as an interpreter of its own that has imported it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from . import fresh

STATE = """
import json, os, sys, threading, warnings
NAMES = ("torch", "torch_tensorrt", "tensorrt", "executorch", "torchtrt_executorch")
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "env": dict(os.environ),
    "flags": str(sys.flags), "threads": threading.active_count(), "main": sorted(vars(sys.modules["__main__"])),
    "modules": sorted(name for name in sys.modules if name.split(".")[0] in NAMES),
    "filters": len(warnings.filters), "file": sys.stdout.isatty(),
}))
"""
ENDS = {
    "nothing": "",
    "an exit": "raise SystemExit(3)",
    "words": "import sys; print('out'); sys.exit('words')",
    "an error": "def f():\n    raise ValueError('wrong')\nf()",
    "what is printed last": "import atexit; atexit.register(print, 'last')",
    "a signal": "import os; os.kill(os.getpid(), 9)",
}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    others = {n: v for n, v in os.environ.items() if not n.startswith("TORCHTRT_")}
    more = {
        "PYTHONPATH": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "TORCHTRT_GPU": "sm_80:9GiB",
    }
    return {**others, **more}


@pytest.mark.parametrize("package", ["torch_tensorrt", "executorch.exir"])
def test_its_state(env: dict[str, str], tmp_path: Path, package: str) -> None:
    """Once it has imported upstream, which imports all that was imported beforehand.

    PyTorch's compiler asks for torch_tensorrt while it is imported, which makes the host ready: that
    has been where nothing of ours was, and is done when upstream is imported.
    """
    pytest.importorskip(package)
    code = f"import torch, {package}\n{STATE}"
    alone, forked = (
        json.loads(run(code, "a", "-b", env=env, cwd=tmp_path).stdout.splitlines()[-1])
        for run in (fresh.python, fresh.run)
    )
    for state in (alone, forked):
        ours = [n for n in state["modules"] if n.startswith("torchtrt_executorch")]
        assert "torchtrt_executorch.overlay" in ours
        if package == "executorch.exir":
            state["modules"] = [n for n in state["modules"] if n not in ours]
    assert {name: forked[name] for name in alone if forked[name] != alone[name]} == {}


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS)
def test_how_it_ends(env: dict[str, str], code: str) -> None:
    """Lines of the traceback too, but for those of what runs the code."""
    env.pop("PYTHONPATH")
    alone, forked = (
        run(code, env={**env, "TORCHTRT_EXECUTORCH": "0"})
        for run in (fresh.python, fresh.run)
    )
    assert (alone.returncode, alone.stdout) == (forked.returncode, forked.stdout)
    assert alone.stderr.splitlines()[-1:] == forked.stderr.splitlines()[-1:]


def test_what_is_read_once_is_read(env: dict[str, str]) -> None:
    code = "import sys; print(sys.flags.hash_randomization, 'torch' in sys.modules)"
    done = fresh.run(code, env={**env, "PYTHONHASHSEED": "0"})
    assert done.stdout.split() == ["0", "True"]
