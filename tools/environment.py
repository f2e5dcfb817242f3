"""Makes the virtual environment of a release lane; needs nothing but Python itself.

    python3 tools/environment.py --lane 2.13 --venv .venv

A lane is one file of exact releases, ``constraints/LANE.txt``, which also says what builds its
engines: TensorRT, TensorRT-RTX, or nothing where there is no Torch-TensorRT for its PyTorch. Upstream's wheels are installed as they are. TensorRT-RTX comes
from PyPI and builds engines anywhere. TensorRT's libraries come from NVIDIA alone, so they are
only asked for where there is a CUDA device to use them; elsewhere, and where they can't be had,
the real Python bindings are installed without them.

An environment that is complete is recognized by a stamp over everything that it is made from,
and left alone.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TENSORRT = ("torch-tensorrt", "tensorrt-cu13", "tensorrt-cu13-bindings")
LIBRARIES = "tensorrt-cu13-libs"
TENSORRT_RTX = (
    "torch-tensorrt-rtx",
    "tensorrt-rtx-cu13",
    "tensorrt-rtx-cu13-bindings",
    "tensorrt-rtx-cu13-libs",
)
#: ExecuTorch's runtime with Torch-TensorRT's delegate, of one release of either.
RUNTIME = "torch-tensorrt-executorch-runtime"
BUILD_TOOLS = ("pip", "setuptools", "wheel")
#: What torch-tensorrt requires beside torch and TensorRT.
BESIDE_TENSORRT = (
    "packaging",
    "typing-extensions",
    "filelock",
    "dllist",
    "psutil",
    "numpy",
)
EXTRAS = "test,lint,demo,cuda,cross"
#: A trained network that tests export. It requires torchaudio and onnxruntime, and tests need neither.
TRAINED = "silero-vad==6.2.3"


class Environment:
    """A virtual environment in the making.

    Args:
        folder: Where it is, or is to be.
        lane: Name of the constraints file.
    """

    def __init__(self, folder: Path, lane: str) -> None:
        self.folder = folder
        self.constraints = ROOT / "constraints" / f"{lane}.txt"
        if not self.constraints.is_file():
            lanes = sorted(file.stem for file in self.constraints.parent.glob("*.txt"))
            sys.exit(f"there is no lane {lane}; there are {', '.join(lanes)}")
        self._stamp = folder / "complete"

    def is_complete(self) -> bool:
        """Whether it was made from what is there now."""
        return self._stamp.is_file() and self._stamp.read_text() == self._sources()

    def make(self) -> None:
        """Make it, or bring it up to date."""
        self._stamp.unlink(missing_ok=True)
        if not (self.folder / "bin" / "python").exists():
            venv.create(self.folder, with_pip=True)
        self._pip("build tools", *BUILD_TOOLS)
        self._pip("PyTorch", "torch")
        self._install_builder()
        self._pip("ExecuTorch", "executorch", *BESIDE_TENSORRT)
        self._uninstall(RUNTIME)
        if RUNTIME in pins(self.constraints):
            self._pip("Torch-TensorRT's runtime", "--no-deps", RUNTIME, may_fail=True)
        project = f"{ROOT}[{EXTRAS}]"
        self._pip("this project", "--no-build-isolation", "-e", project)
        self._pip("a trained network", "--no-deps", TRAINED)
        self._stamp.write_text(self._sources())

    def _install_builder(self) -> None:
        """Install Torch-TensorRT, and what builds its engines."""
        # The two share the package torch_tensorrt: one has to go before the other comes.
        alone = ("--no-deps", "--no-build-isolation")
        builder = torch_tensorrt_of(self.constraints)
        if builder == TENSORRT_RTX[0]:
            self._uninstall(*TENSORRT, LIBRARIES)
            self._pip("TensorRT-RTX", *alone, *TENSORRT_RTX)
            return
        self._uninstall(*TENSORRT_RTX)
        if builder is None:
            self._uninstall(*TENSORRT, LIBRARIES)
            return  # none for its PyTorch yet
        wanted = (*TENSORRT, LIBRARIES)
        if not (cuda_device() and self._pip("TensorRT", *wanted, may_fail=True)):
            self._pip("TensorRT's bindings", *alone, *TENSORRT)

    def _uninstall(self, *distributions: str) -> None:
        python = self.folder / "bin" / "python"
        command = [python, "-m", "pip", "uninstall", "--quiet", "--yes", *distributions]
        subprocess.run(command, capture_output=True, check=True)

    def _pip(self, what: str, *arguments: str, may_fail: bool = False) -> bool:
        print(f"{what} ... ", end="", flush=True)
        started = time.monotonic()
        python = self.folder / "bin" / "python"
        command = [python, "-m", "pip", "install", "--quiet", "-c", self.constraints]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True)
        if done.returncode == 0:
            print(f"{time.monotonic() - started:.0f} s", flush=True)
        elif may_fail:
            print("not to be had here", flush=True)
        else:
            print("failed", flush=True)
            sys.exit(done.stderr)
        return done.returncode == 0

    def _sources(self) -> str:
        made_from = (
            self.constraints,
            ROOT / "pyproject.toml",
            ROOT / "setup.py",
            Path(__file__),
        )
        digest = hashlib.sha256(sys.version.encode())
        for file in made_from:
            digest.update(file.read_bytes())
        # Where an editable install points, and packages that it has to map.
        digest.update(str(ROOT).encode())
        for package in sorted(ROOT.glob("[!.]*/**/__init__.py")):
            if self.folder not in package.parents:
                digest.update(str(package.relative_to(ROOT)).encode())
        return digest.hexdigest()


def pins(constraints: Path) -> dict[str, str]:
    """Return the release of each distribution that a lane pins."""
    found = re.findall(r"^([\w-]+)==([^\s;]+)", constraints.read_text(), re.MULTILINE)
    return dict(found)


def torch_tensorrt_of(constraints: Path) -> str | None:
    """Return the distribution that a lane's Torch-TensorRT is, or None where there is none for its PyTorch."""
    names = (TENSORRT_RTX[0], TENSORRT[0])
    return next((name for name in names if name in pins(constraints)), None)


def cuda_device() -> bool:
    """Whether the NVIDIA driver lists a device; PyTorch isn't there yet to be asked."""
    if shutil.which("nvidia-smi") is None:
        return False
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return re.search(r"^GPU \d", listed.stdout, re.MULTILINE) is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lane", required=True)
    parser.add_argument("--venv", type=Path, default=Path(".venv"))
    arguments = parser.parse_args()
    environment = Environment(arguments.venv.absolute(), arguments.lane)
    if not environment.is_complete():
        print(
            f"Making {arguments.venv} for the lane {arguments.lane}; once, some minutes"
        )
        environment.make()


if __name__ == "__main__":
    main()
