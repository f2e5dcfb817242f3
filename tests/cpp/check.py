"""Runs the programs of `programs` in ExecuTorch's own C++ runtime, from its Python package.

    python tests/cpp/check.py build             examples/cpp's hosts, with stand-ins for a GPU's delegates
    python tests/cpp/check.py make [--real]     where the package is installed; needs no GPU
    python tests/cpp/check.py run  [--real --host HOST]    needs PyTorch alone; with a GPU if real
    python tests/cpp/check.py share             methods that share their state
    python tests/cpp/check.py llm               language models in their host
    python tests/cpp/check.py delegate          how the host is built with Torch-TensorRT's delegate
    python tests/cpp/check.py page              docs/deploying_in_cpp.md, as it is written

``make test-cpp`` does all of it with stand-ins. ``--real`` is for a host that was built with
ExecuTorch's CUDA backend. The exit status is 1 if a program of ours is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Has C++ headers and libraries in its wheel; older releases don't.
PACKAGE = "executorch==1.5.1"
#: Its sdist has tokenizers in C++, with all that they are made of.
TOKENIZERS = "pytorch_tokenizers==1.0.1"
TOLERANCE = 2e-5
#: A host that asks for nothing, and the ways to have one stream, by the backends of a program: see
#: standin.cpp.
STREAMS = {
    ("CudaBackend",): ("own", "shared", "caller"),
    ("TensorRTBackend",): ("own", "caller", "guard", "both"),
    ("CudaBackend", "TensorRTBackend"): ("own", "shared", "caller", "guard", "both"),
}


#: Torch-TensorRT 2.13's guard, without and with ExecuTorch's.
_OLDER = ("guard", "both")


def build(arguments: argparse.Namespace) -> None:
    """Compiles the hosts, with the installed release's C++ runtime or with `PACKAGE`'s."""
    package = _package(arguments.out)
    for command in (
        f"cmake -S {ROOT / 'examples' / 'cpp'} -B {arguments.out} -DCMAKE_BUILD_TYPE=Release "
        f"-DCMAKE_PREFIX_PATH={package} -DDELEGATES={HERE / 'standin.cpp'} "
        f"-DTOKENIZERS={_tokenizers(arguments.out)}",
        f"cmake --build {arguments.out} --parallel {os.cpu_count()}",
    ):
        done = subprocess.run(command.split(), capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"the hosts could not be built\n{done.stdout}\n{done.stderr}")
    print(f"hosts of {package}", flush=True)


def _package(folder: Path) -> Path:
    """The folder of the installed ``executorch``, if it has C++ libraries, or of `PACKAGE`'s."""
    import executorch

    installed = Path(next(iter(executorch.__path__)))
    if (installed / "lib" / "cmake" / "executorch").is_dir():
        return installed
    package = folder / PACKAGE
    if not package.is_dir():
        command = f"-m pip install --quiet --no-deps --target {package} {PACKAGE}"
        subprocess.run([sys.executable, *command.split()], check=True)
    return package / "executorch"


def _tokenizers(folder: Path) -> Path:
    """The folder of `TOKENIZERS`' sources."""
    sources = folder / TOKENIZERS.replace("==", "-")
    if not sources.is_dir():
        command = f"-m pip download --quiet --no-deps --no-binary=pytorch_tokenizers -d {folder} {TOKENIZERS}"
        subprocess.run([sys.executable, *command.split()], check=True)
        shutil.unpack_archive(f"{sources}.tar.gz", folder)
    return sources


def page(arguments: argparse.Namespace) -> None:
    """Runs the page's Python and shell, in order, and looks for its C++ in the hosts' sources."""
    text = (ROOT / "docs" / "deploying_in_cpp.md").read_text()
    sources = [file.read_text() for file in (ROOT / "examples" / "cpp").glob("*.cpp")]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S):
            if language == "cpp":
                found = any(block in source for source in sources)
                assert found, f"in no source as it is:\n{block}"
            command = {"python": [sys.executable, "-c"], "bash": ["bash", "-ec"]}
            if language not in command:
                continue
            done = subprocess.run(
                [*command[language], block],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
            )
            if done.returncode:
                sys.exit(f"{block}\n{done.stdout}\n{done.stderr}")
            print(done.stdout, end="", flush=True)


def make(arguments: argparse.Namespace) -> None:
    sys.path.insert(0, str(HERE))
    from programs import make as make_programs

    folder = arguments.out / "programs"
    shutil.rmtree(folder, ignore_errors=True)
    make_programs(folder, arguments.real, arguments.only)


def run(arguments: argparse.Namespace) -> None:
    """Runs every program that was made, several times on other inputs, and compares with eager."""
    sys.path.insert(0, str(HERE))
    wrong = ran = shown = 0
    print(f"{'program':38} {'pass':11} {'streams':8} {'copies':7} largest differences")
    runs = []
    for file in sorted((arguments.out / "programs").glob("*/program.pte")):
        case, option, side = file.parent.name.rsplit("_", 2)
        if arguments.only and case.split(".")[0] not in arguments.only:
            continue
        facts = json.loads((file.parent / "facts.json").read_text())
        streams = STREAMS[tuple(facts["backends"])]
        if side == "ours":
            streams = tuple(each for each in streams if each not in _OLDER)
        one = ("both",) if "both" in streams else streams[1:]
        for each in streams[: 1 if side == "upstream" or arguments.real else None]:
            promised = side.startswith("ours") or (side == "one-stream" and each in one)
            title = f"{case + ', ' + option:38} {side:11} {each:8}"
            runs.append((title, promised, file, case.split(".")[0], each, facts))
    # They sleep most of the time.
    with ThreadPoolExecutor(1 if arguments.real else 4) as pool:
        results = pool.map(lambda run: _run_one(arguments, *run[2:]), runs)
        for (title, promised, *_), (worst, text) in zip(runs, results, strict=True):
            ran += promised
            wrong += promised and not worst <= TOLERANCE
            shown += not promised and not worst <= TOLERANCE
            print(title, text, flush=True)
    if wrong or not ran:
        sys.exit(f"{wrong} of {ran} runs of our programs are wrong")
    if not (shown or arguments.only or arguments.real):
        sys.exit("programs that nobody orders were right as well: nothing was tested")
    print(f"{ran} runs of our programs are right, {shown} that nobody orders are wrong")


def _run_one(
    arguments: argparse.Namespace, file: Path, name: str, streams: str, facts: Any
) -> tuple[float, str]:
    import numpy
    import torch
    from models import by_name

    program = by_name(name)
    model = program.model(size := program.size(arguments.real)).eval()
    model.load_state_dict(torch.load(file.parents[1] / f"{name}.pt", weights_only=True))
    device = "cuda" if arguments.real else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    model.to(device)
    calls = arguments.out / "calls" / f"{file.parent.name}_{streams}"
    folders = [calls / str(index) for index in range(arguments.runs)]
    expected = []
    for index, folder in enumerate(folders):
        folder.mkdir(parents=True, exist_ok=True)
        x = program.inputs(size, index)
        numpy.save(folder / "input_0.npy", x.numpy())
        with torch.no_grad():
            outputs = model(x.to(device))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        expected.append([each.cpu().clone() for each in outputs])
    host = arguments.host or arguments.out / "host"
    command = [host, file, *sorted(file.parent.glob("*.ptd")), *folders]
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "STREAM": streams,
            "TENSORRT": "2.14" if file.parent.name.endswith("_ours") else "2.13",
        },
        timeout=300,
    )
    if done.returncode:
        return float("inf"), f"failed: {done.stderr.strip().splitlines()[-1][:90]}"
    differences = []
    for folder, outputs in zip(folders, expected, strict=True):
        worst = 0.0
        for number, want in enumerate(outputs):
            got = torch.from_numpy(numpy.load(folder / f"output_{number}.npy"))
            assert got.shape == want.shape and got.dtype == want.dtype
            difference = (got - want).abs().max().item() / max(
                1.0, want.abs().max().item()
            )
            worst = max(worst, difference) if difference == difference else float("inf")
        differences.append(worst)
    text = " ".join(f"{each:.1e}" for each in differences)
    return max(differences), f"{facts['h2d']}/{facts['d2h']}".ljust(8) + text


def share(arguments: argparse.Namespace) -> None:
    """Makes and runs programs of two methods over one state."""
    sys.path.insert(0, str(HERE))
    from shared_state import check

    if wrong := check(
        arguments.host or arguments.out / "host", arguments.out / "shared"
    ):
        sys.exit(f"{wrong} programs that share state are wrong")
    from arenas import check as check_arenas

    if check_arenas(_package(arguments.out), arguments.out / "arenas"):
        sys.exit("Module's share_memory_arenas isn't what inspect says")


def llm(arguments: argparse.Namespace) -> None:
    """Makes language models of each form, and runs them in their host."""
    sys.path.insert(0, str(HERE))
    from language_models import check

    if wrong := check(arguments.out / "llm", arguments.out / "language_models"):
        sys.exit("\n".join(wrong))


def delegate(arguments: argparse.Namespace) -> None:
    """Builds the host with a stand-in for Torch-TensorRT's delegate, and without what that needs."""
    sys.path.insert(0, str(HERE))
    from delegate import check

    if shutil.which("nvcc") is None:
        print("delegate: there is no CUDA toolkit here to build it with", flush=True)
        return
    package = _package(arguments.out)
    if wrong := check(package, arguments.out / "delegate"):
        sys.exit("\n".join(wrong))
    print("delegate: built, and what is missing is said", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("steps", nargs="+", choices=STEPS)
    parser.add_argument("--out", type=Path, default=Path("build/cpp"))
    parser.add_argument("--host", type=Path, help="a host that was built elsewhere")
    parser.add_argument("--real", action="store_true", help="CUDA libraries on a GPU")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="programs' names")
    arguments = parser.parse_args()
    arguments.out = arguments.out.resolve()
    for step in arguments.steps:
        STEPS[step](arguments)


#: What there is to do, in this order.
STEPS = {each.__name__: each for each in (build, make, run, share, llm, delegate, page)}


if __name__ == "__main__":
    main()
