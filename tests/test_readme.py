"""The README's snippets, run in order as they are written."""

from __future__ import annotations

import os
import re
from pathlib import Path

from torchtrt_executorch.cache import SWITCH

from . import fresh

README = Path(__file__).resolve().parent.parent / "README.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.M | re.S)


#: Kept for the end: what checks it imports more than a snippet may need.
KEEP = """
import shutil
shutil.copytree(".", "first")
"""
CHECKS = """
from torchtrt_executorch.runtime import load
for folder in (".", "first"):
    for size in (x, torch.randn(3, 64)):
        (found,) = load(f"{folder}/model.pte", emulated_engines=True).run(size, scale)
        torch.testing.assert_close(found, model(size, scale=scale))
"""


def test_snippets_run(tmp_path: Path) -> None:
    """In a fresh interpreter, on whatever host this is; the program is right after the first and after all of them."""
    inherited = {
        k: v
        for k, v in os.environ.items()
        if k == SWITCH or not k.startswith("TORCHTRT_")
    }
    first, *others = SNIPPETS
    code = "".join((first, KEEP, *others, CHECKS))
    done = fresh.python(code, env=inherited, cwd=tmp_path, once=True)
    assert done.returncode == 0, done.stderr[-3000:]
