"""Runs the programs of `programs` in ExecuTorch's own C++ runtime, built from a source tree.

    python tests/cpp/check.py build --executorch TREE [--flatbuffers TREE] [--cuda TOOLKIT]
    python tests/cpp/check.py make [--real]     where the package is installed; needs no GPU
    python tests/cpp/check.py run  [--real]     needs PyTorch alone; with a GPU if real

``make test-cpp EXECUTORCH=TREE`` does all three with stand-ins for a GPU. The exit status is 1 if a
program of ours is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
TOLERANCE = 2e-5
#: How each side's programs are run: a stream per delegate, or one of two kinds for all.
STREAMS = {
    "ours": ("own", "shared"),
    "one-stream": ("shared", "caller", "own"),
    "upstream": ("own",),
}


def build(arguments: argparse.Namespace) -> None:
    """Compiles the runner; two minutes on two cores."""
    import executorch

    tree = arguments.executorch.resolve()
    release = (tree / "version.txt").read_text().strip()
    installed = re.match(r"[\d.]+\d", version("executorch"))
    if installed is None or not release.startswith(installed[0]):
        sys.exit(
            f"{tree} is ExecuTorch {release}, and executorch {version('executorch')} is installed; "
            "check out the tag of that release"
        )
    wheel = Path(next(iter(executorch.__path__)))
    flatc = os.environ.get("FLATC_EXECUTABLE") or wheel / "data" / "bin" / "flatc"
    command = [
        "make",
        f"-j{os.cpu_count()}",
        "-f",
        str(HERE / "Makefile"),
        f"EXECUTORCH={tree}",
        f"FLATC={flatc}",
        f"OUT={arguments.out.resolve()}",
    ]
    for name in ("flatbuffers", "cuda", "cuda_driver"):
        if given := getattr(arguments, name):
            command.append(f"{name.upper()}={given.resolve()}")
    if subprocess.run(command, cwd=HERE).returncode:
        sys.exit("the runner could not be built")


def make(arguments: argparse.Namespace) -> None:
    sys.path.insert(0, str(HERE))
    from programs import make as make_programs

    make_programs(arguments.out / "programs", arguments.real, arguments.only)


def run(arguments: argparse.Namespace) -> None:
    """Runs every program that was made, several times on other inputs, and compares with eager."""
    sys.path.insert(0, str(HERE))
    wrong = 0
    print(f"{'program':34} {'pass':11} {'streams':8} {'copies':7} largest differences")
    for file in sorted((arguments.out / "programs").glob("*/*.json")):
        name, option, side = file.parent.name.rsplit("_", 2)
        if arguments.only and name not in arguments.only:
            continue
        for streams in STREAMS[side]:
            if streams == "caller" and not arguments.real:
                continue
            worst, text = _run_one(arguments, file, name, streams)
            promised = side == "ours" or (side == "one-stream" and streams != "own")
            wrong += promised and not worst <= TOLERANCE
            print(f"{name + ', ' + option:34} {side:11} {streams:8} {text}", flush=True)
    if wrong:
        sys.exit(f"{wrong} runs of our programs are wrong")


def _run_one(
    arguments: argparse.Namespace, file: Path, name: str, streams: str
) -> tuple[float, str]:
    import torch
    from models import by_name

    program = by_name(name)
    places = json.loads(file.read_text())
    model = program.model(size := program.size(arguments.real)).eval()
    model.load_state_dict(torch.load(file.parents[1] / f"{name}.pt", weights_only=True))
    device = "cuda" if arguments.real else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    model.to(device)
    folder = arguments.out / "io"
    folder.mkdir(exist_ok=True)
    expected = []
    for index in range(arguments.runs):
        x = program.inputs(size, index)
        x.numpy().tofile(folder / f"in_{index}_0.bin")
        with torch.no_grad():
            outputs = model(x.to(device))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        expected.append([each.cpu().clone() for each in outputs])
    weights = sorted(file.parent.glob("*.ptd"))
    environment = {
        **os.environ,
        "STREAM": streams,
        "DEVICE_INPUTS": places["inputs"],
        "BIND_OUTPUTS": places["bind"],
    }
    if streams != "own" and not arguments.real:
        environment["STANDIN_SHARED_STREAM"] = "1"
    command = [arguments.out / "runner", file.with_suffix(".pte"), folder]
    done = subprocess.run(
        [*map(str, command), str(arguments.runs), *map(str, weights)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    if done.returncode:
        return float("inf"), f"failed: {done.stderr.strip().splitlines()[-1][:90]}"
    facts = json.loads(done.stdout.splitlines()[-1])
    differences = []
    for index, outputs in enumerate(expected):
        worst = 0.0
        for number, want in enumerate(outputs):
            raw = (folder / f"out_{index}_{number}.bin").read_bytes()
            got = torch.frombuffer(bytearray(raw), dtype=want.dtype).view(want.shape)
            difference = (got - want).abs().max().item() / max(
                1.0, want.abs().max().item()
            )
            worst = max(worst, difference) if difference == difference else float("inf")
        differences.append(worst)
    text = " ".join(f"{each:.1e}" for each in differences)
    copies = f"{facts['to_device']}/{facts['to_host']}"
    return max(differences), f"{copies:7} {text}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("steps", nargs="+", choices=["build", "make", "run"])
    parser.add_argument("--out", type=Path, default=Path("build/cpp"))
    parser.add_argument("--executorch", type=Path, help="source tree")
    parser.add_argument("--flatbuffers", type=Path, help="source tree")
    parser.add_argument("--cuda", type=Path, help="CUDA toolkit")
    parser.add_argument("--cuda-driver", type=Path, help="libcuda.so or a stub of it")
    parser.add_argument("--real", action="store_true", help="CUDA libraries on a GPU")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="programs' names")
    arguments = parser.parse_args()
    steps = {"build": build, "make": make, "run": run}
    for step in arguments.steps:
        steps[step](arguments)


if __name__ == "__main__":
    main()
