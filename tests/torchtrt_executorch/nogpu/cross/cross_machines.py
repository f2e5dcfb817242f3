"""CUDA delegates on machines that aren't here: loaded by qemu and wine, and watched.

    PYTHONPATH=. python tests/torchtrt_executorch/nogpu/cross/cross_machines.py FOLDER/linux-x86_64 FOLDER/linux-aarch64 ...

compares programs of one name in several folders, which ``tests/gpu/cuda_architectures.py make FOLDER
NAME... --gpu TARGET`` writes: each delegate is loaded on its machine over libraries that stand in for CUDA's
and ExecuTorch's and write down what they are asked: images by digest, kernels, grids, blocks, shared memory,
the bytes of every argument, weights. That has to be what the first folder's asks.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from torchtrt_executorch import cache
from torchtrt_executorch.nogpu.cross import driver
from torchtrt_executorch.nogpu.target.gpu_description import own_platform
from torchtrt_executorch.payloads import native_library
from torchtrt_executorch.runtime.delegates import inputs_of
from torchtrt_executorch.runtime.delegates.aoti import read_payload
from torchtrt_executorch.runtime.plans.plan import Kind
from torchtrt_executorch.runtime.plans.reader import read_plans
from torchtrt_executorch.runtime.reading.data_files import data_files
from torchtrt_executorch.runtime.reading.files import read_program

SOURCES = Path(__file__).parent / "native"
SYSROOT = "/usr/aarch64-linux-gnu"
#: What runs a program there, and what has to be installed for it.
MACHINES = {
    "linux-x86_64": ([], "true"),
    "linux-aarch64": (["qemu-aarch64-static", "-L", SYSROOT], "qemu-aarch64-static"),
    "windows-x86_64": (["wine"], "wine"),
}
PARTS = {
    "linux": {"CUDART": "libcudart.so.13", "CUDA": "libcuda.so.1", "SHIMS": "libaoti_cuda_shims.so"},
    "windows": {"CUDART": "cudart64_13.dll", "CUDA": "nvcuda.dll", "SHIMS": "aoti_cuda_shims.dll"},
}  # fmt: skip
#: PyTorch's types as AOTInductor numbers them.
NUMBERS = {
    **{torch.uint8: 0, torch.int8: 1, torch.int32: 3, torch.int64: 4, torch.bool: 11},
    **{torch.float16: 5, torch.float32: 6, torch.bfloat16: 15},
}


@dataclass(frozen=True)
class Loaded:
    """A delegate of a program: its library, its weights, and its inputs in the loader's words."""

    library: bytes
    weights: bytes
    inputs: tuple[str, ...]


def can_run(platform: str) -> bool:
    """Whether there is what runs libraries of a machine here."""
    return shutil.which(MACHINES[platform][1]) is not None


def zig() -> str:
    import ziglang

    return str(Path(ziglang.__file__).with_name("zig"))


def described(tensor_sizes: tuple[int, ...], dtype: torch.dtype) -> str:
    """A tensor in the loader's words."""
    return ",".join(map(str, (NUMBERS[dtype], *tensor_sizes)))


def delegates(program: Path) -> Iterator[Loaded]:
    """The CUDA delegates of a program, once for each call, at the largest sizes of their inputs."""
    file = read_program(program, data_files(program))
    for plan in read_plans(file, inputs_of).values():
        for each in plan.operations:
            if each.kind is not Kind.DELEGATE or each.delegate is None:
                continue
            payload = plan.delegates[each.delegate]
            if payload.backend_id != "CudaBackend":
                continue
            library, weights = map(payload.data, read_payload(payload).keys)
            inputs = tuple(
                described(slot.layout.sizes, slot.layout.dtype)
                for slot in plan.tensors(each.args[: each.inputs])
                if slot.layout is not None
            )
            yield Loaded(bytes(library), bytes(weights), inputs)


@functools.cache
def recorder(platform: str) -> tempfile.TemporaryDirectory[str]:
    """The folder of a machine's recorder and loader."""
    made = tempfile.TemporaryDirectory(prefix=platform)
    folder = Path(made.name)
    system = platform.partition("-")[0]
    windows = system == "windows"
    compiler = ["cc", "-O1", "-w"]
    if platform != own_platform():
        target = ["-target", driver.triple(platform)]
        compiler = [zig(), "cc", *target, "-O1", "-Wno-everything"]
        compiler.append("-fno-sanitize=undefined")
    environment = driver.caches(str(cache.folder() / "cross" / platform))

    def compile(*arguments: str) -> None:
        subprocess.run([*compiler, *arguments], check=True, env=environment)

    parts = PARTS[system]
    for part, name in parts.items():
        words = ["-shared", f"-DPART_{part}", str(SOURCES / "recorder.c")]
        words += ["-o", str(folder / name)]
        if windows:
            words.append(f"-Wl,--out-implib,{folder / name}.a")
            words += [f"{folder / parts['CUDART']}.a"] if part == "SHIMS" else []
        else:
            words += ["-fPIC", f"-Wl,-soname,{name}"]
            words += [str(folder / parts["CUDART"])] if part == "SHIMS" else []
        compile(*words)
    loader = folder / ("loader.exe" if windows else "loader")
    linked = [] if windows else ["-ldl"]
    compile(str(SOURCES / "loader.c"), "-o", str(loader), *linked)
    return made


def recorded(platform: str, delegate: Loaded, capability: int = 87) -> str:
    """What the library asks for when it is loaded, given its weights, and run once on a GPU of a capability."""
    folder = Path(recorder(platform).name)
    runner, _ = MACHINES[platform]
    windows = platform.startswith("windows")
    model = folder / ("model.dll" if windows else "libmodel.so")
    model.write_bytes(delegate.library)
    (folder / "weights").write_bytes(delegate.weights)
    log = folder / "log.txt"
    log.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "RECORDER_LOG": log.name,
        "RECORDER_CAPABILITY": str(capability),
        "WINEDEBUG": "-all",
        "WINEPREFIX": str(folder / "wine"),
        "DISPLAY": "",
    }
    command = list(runner)
    if platform == "linux-aarch64":
        command += ["-E", f"LD_LIBRARY_PATH={folder}"]
    elif not windows:
        environment["LD_LIBRARY_PATH"] = str(folder)
    command += ["./loader.exe" if windows else "./loader"]
    command += [f"./{model.name}", "./weights", *delegate.inputs]
    options = {"cwd": folder, "env": environment, "timeout": 300, "text": True}
    done = subprocess.run(command, capture_output=True, **options)  # type: ignore[call-overload]
    said = log.read_text() if log.exists() else ""
    assert done.returncode == 0, (done.stderr, said[-2000:])
    return said.replace("\r\n", "\n")


def compare(programs: list[Path]) -> dict[str, object]:
    """What the first of several programs, made for several machines, and the others ask for."""
    row: dict[str, object] = {"name": programs[0].stem}
    said: dict[str, list[str]] = {}
    for program in programs:
        found = list(delegates(program))
        platform = native_library.read(found[0].library).platform
        files = [program, *data_files(program)]
        row[platform] = {
            "library": sum(len(each.library) for each in found),
            "weights": sum(len(each.weights) for each in found),
            "files": sum(each.stat().st_size for each in files),
        }
        said[platform] = [recorded(platform, each) for each in found]
    first, *others = said.values()
    lines = "".join(first)
    row["delegates"], row["lines"] = len(first), lines.count("\n")
    row["launches"] = lines.count("\ncuLaunchKernel")
    row["sha256"] = hashlib.sha256(lines.encode()).hexdigest()[:16]
    row["on"] = list(said)
    row["same"] = (
        row["launches"] != 0
        and len(said) == len(programs) > 1
        and all(each == first for each in others)
    )
    return row


def main(folders: list[Path]) -> int:
    """Compare the programs that are in all folders; return how many differ."""
    names = sorted(file.name for file in folders[0].glob("*.pte"))
    wrong = 0
    for name in names:
        programs = [folder / name for folder in folders]
        try:
            row = compare(programs)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[:1500]
            row = {"name": Path(name).stem, "same": False, "error": text}
        wrong += not row["same"]
        print(json.dumps(row), flush=True)
    print(
        f"{len(names) - wrong} of {len(names)} ask for the same on {len(folders)} machines"
    )
    return wrong


if __name__ == "__main__":
    sys.exit(min(main([Path(each) for each in sys.argv[1:]]), 1))
