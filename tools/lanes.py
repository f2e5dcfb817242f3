"""Which patches an import would warn of on a lane: all lanes in a minute, where their tests are run in turns.

    make lanes

Of each release of torch-tensorrt and executorch that ``constraints/`` names and that isn't installed, the wheel alone is
put into ``build/lanes``, ahead of what is installed. The overlay reads sources, so it says there what it would on that lane.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from torchtrt_executorch.overlay.upstream import distribution_release

ROOT = Path(__file__).resolve().parent.parent
_FOLDER = ROOT / "build" / "lanes"
_PIN = re.compile(r"^(torch-tensorrt(?:-rtx)?|executorch)==([\w.]+)", re.MULTILINE)
#: Those that an import would warn of, on this lane: of a supported release none may.
_VERDICTS = """
import json
from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import patch_statuses
found = patch_statuses(PATCHES)
print(json.dumps({n: v.reason for n, v in found.items() if v.surprising}))
"""


def main() -> int:
    failed = False
    for lane in sorted((ROOT / "constraints").glob("*.txt")):
        pins = dict(_PIN.findall(lane.read_text()))
        folders = [
            _unpacked(name, release)
            for name, release in pins.items()
            if distribution_release(name) != release
        ]
        left_out = _left_out(folders)
        for name, reason in left_out.items():
            print(f"{lane.stem}: the patch {name} is left out: {reason}")
        failed = failed or bool(left_out)
        releases = " ".join(f"{name} {release}" for name, release in pins.items())
        print(f"{lane.stem}: {releases}: {'failed' if left_out else 'all fit'}")
    return int(failed)


def _unpacked(name: str, release: str) -> Path:
    """Return a folder with nothing but one release of a distribution."""
    folder = _FOLDER / f"{name}-{release}"
    if not folder.is_dir():
        staged = folder.with_suffix(".part")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        options = ["--no-cache-dir", "--upgrade", "--target", str(staged)]
        subprocess.run([*pip, *options, f"{name}=={release}"], check=True)
        staged.rename(folder)
    return folder


def _left_out(folders: list[Path]) -> dict[str, str]:
    """Return the patches that have no place where ``folders`` are ahead of what is installed, with reasons."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _VERDICTS],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())
