"""A user without an entry in passwd and without a home, as containers run programs."""

from __future__ import annotations

import os
from pathlib import Path

from torchtrt_executorch.nogpu.host import present

from .... import fresh

CODE = """
import os, pwd

def nobody(user):
    raise KeyError(f"getpwuid(): uid not found: {user}")

missing = pwd.getpwuid = nobody
import torch, torch_tensorrt
from torch_tensorrt.dynamo import _defaults
assert pwd.getpwuid is missing
print(_defaults.DEBUG_LOGGING_DIR, os.getuid())
"""


def test_upstream_is_imported(tmp_path: Path) -> None:
    dropped = ("HOME", "XDG_CACHE_HOME")
    environment = {k: v for k, v in os.environ.items() if k not in dropped}
    # Where they are missing their link stubs have to be kept somewhere, as their error says.
    if not present.tensorrt_libraries():
        environment["XDG_CACHE_HOME"] = str(tmp_path)
    # Not forked: PyTorch's compiler asks for the name as well, when it is imported.
    done = fresh.python(CODE, env=environment)
    assert done.returncode == 0, done.stderr
    folder, user = done.stdout.split()[-2:]
    assert f"torch_tensorrt_{user}" in folder
