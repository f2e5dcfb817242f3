"""A language model of two methods in ExecuTorch's ``Module``, which shares their cache if it is told to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHUNK, COUNT = 8, 64


def check(package: Path, folder: Path) -> int:
    """Build the host and run both forms, print a line for each, and return how many are not as ``inspect`` says."""
    sys.path.insert(0, str(HERE.parents[1]))
    from tests.torchtrt_executorch.generation import toy

    folder.mkdir(parents=True, exist_ok=True)
    for command in (
        ["cmake", "-S", HERE / "module_arenas", "-B", folder]
        + [f"-DCMAKE_PREFIX_PATH={package}", "-DCMAKE_BUILD_TYPE=Release"],
        ["cmake", "--build", folder],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"the host could not be built\n{done.stdout}\n{done.stderr}")
    file = folder / "model.pte"
    file.write_bytes(toy.saved("decode", chunk=CHUNK))
    wanted, wrong = toy.eager(toy.PROMPT, COUNT), 0
    for share in (False, True):
        arguments = [file, int(share), CHUNK, COUNT, *toy.PROMPT]
        done = subprocess.run(
            [folder / "module_arenas", *map(str, arguments)],
            capture_output=True,
            text=True,
            check=True,
        )
        pairs = zip(map(int, done.stdout.split()), wanted, strict=True)
        alike = sum(one == other for one, other in pairs)
        wrong += (alike == COUNT) != share
        print(f"share_memory_arenas={share}: {alike} of {COUNT} tokens", flush=True)
    return wrong
