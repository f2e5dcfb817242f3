"""The patches as upstream would see them: as diffs, and tried in a copy of what is installed.

    python tools/patch_set.py write [--to patches] [NAME ...]
    python tools/patch_set.py check [NAME ...]

``write`` makes one unified diff per patch that has files of its own, against the installed
releases; ``patch -p1`` applies it in the folder that holds ``torch_tensorrt`` and ``executorch``
(in a checkout of TensorRT that is ``py/``, in one of ExecuTorch the folder that it is in).

``check`` applies each diff to a copy of the installed packages and runs the patch's tests there, on
the copy's files alone. The overlay is off for them, if all of the patch are files of ExecuTorch's.
Else it is on, for what makes engines and for amendments, which are no files; of the patch it serves
nothing, since it leaves to upstream what upstream has.
"""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
from collections.abc import Container
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import Patch, State, verdicts_on
from torchtrt_executorch.overlay.upstream import locate

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "torch_tensorrt": ROOT / "py/torch_tensorrt",
    "executorch/backends": ROOT / "backends",
    "executorch/exir": ROOT / "exir",
}
TESTS = {
    "target-executorch": [
        "tests/py/torch_tensorrt/dynamo/test_allocator_routing.py",
        "tests/py/torch_tensorrt/dynamo/test_output_allocator_ops.py",
        "tests/py/torch_tensorrt/dynamo/test_executorch_target.py",
        "tests/py/torch_tensorrt/dynamo/test_settings.py",
    ],
    "failing-validators": ["tests/py/torch_tensorrt/dynamo/test_selection.py"],
    "named-refusals": ["tests/torchtrt_executorch/tensorrt_rtx/test_fallback.py"],
    "partition-support": ["tests/py/torch_tensorrt/dynamo/test_partition_support.py"],
    "fallback-reasons": ["tests/torchtrt_executorch/inspection/test_report.py"],
    "control-flow": ["tests/py/torch_tensorrt/dynamo/test_branches.py"],
    "constant-outputs": ["tests/py/torch_tensorrt/dynamo/test_constant_outputs.py"],
    "compile-arguments": [
        "tests/py/torch_tensorrt/dynamo/test_executorch_target.py::test_a_misspelled_parameter_is_an_error"
    ],
    "build-fallback": ["tests/torchtrt_executorch/tensorrt_rtx/test_fallback.py"],
    "node-routing": [
        "tests/py/torch_tensorrt/dynamo/test_allocator_routing.py::test_lookups_by_node",
        "tests/py/torch_tensorrt/dynamo/test_allocator_routing.py::test_logs_the_nodes",
    ],
    "shared-state": ["tests/py/torch_tensorrt/dynamo/test_shared_state.py"],
    "mutated-buffers": ["tests/py/torch_tensorrt/dynamo/test_mutations.py"],
    "mutable-module": [
        "tests/py/torch_tensorrt/dynamo/test_mutations.py::test_mutable_module"
    ],
    "quantized-engines": ["tests/py/torch_tensorrt/executorch/test_quantized.py"],
    "engine-blob": ["tests/py/torch_tensorrt/executorch/test_serialization.py"],
    "engine-backend": ["tests/py/torch_tensorrt/executorch/test_backend.py"],
    "tensorrt-partitioner": [
        "tests/py/torch_tensorrt/executorch/test_partitioner.py",
        "tests/py/torch_tensorrt/executorch/test_partitioner_boundary.py",
    ],
    "executorch-export": [
        "tests/py/torch_tensorrt/executorch/test_engine_placeholders.py",
        "tests/py/torch_tensorrt/executorch/test_save.py",
    ],
    "compiling-partitioner": [
        "tests/py/torch_tensorrt/executorch/test_compiling_partitioner.py",
        "tests/py/torch_tensorrt/executorch/test_compiling_oddities.py",
    ],
    "common-state": ["tests/exir/program/test_common_state.py"],
    "external-data": [
        "tests/exir/program/test_external_data.py",
        "tests/exir/program/test_saved_files.py",
    ],
    "branch-results": [
        "tests/exir/program/test_branch_results.py",
        "tests/exir/program/test_old_values.py",
    ],
    "whole-operators": ["tests/exir/program/test_whole_operators.py"],
    "memory-formats": ["tests/exir/passes/test_memory_formats.py"],
    "operator-errors": [
        "tests/exir/program/test_off_graph_cache.py",
        "tests/exir/program/test_unbounded.py",
    ],
    "lowering-leftovers": ["tests/exir/program/test_leftovers.py"],
    "propagate-device-pass": ["tests/exir/passes/test_labels.py"],
    "device-copies": [
        "tests/exir/passes/test_written_in_place.py",
        "tests/exir/passes/test_properties.py",
    ],
    "delegate-order": [
        "tests/exir/passes/test_delegate_order.py",
        "tests/exir/passes/test_copies.py",
    ],
    "device-state": [
        "tests/exir/passes/test_state.py",
        "tests/exir/passes/test_options.py",
    ],
    "aoti-partitioner": ["tests/backends/aoti"],
    "cuda-operators": [
        "tests/backends/cuda/test_attention.py",
        "tests/backends/cuda/test_control_flow.py",
        "tests/backends/cuda/test_operators.py",
    ],
    "cuda-quantized-weights": ["tests/backends/cuda/test_quantized_weights.py"],
    "cuda-without-gpu": [
        "tests/backends/cuda/test_measured_tiles.py",
        "tests/backends/cuda/test_thread_scope.py",
    ],
}

#: Tests among those that ask whether the overlay serves the module: in the copy it doesn't.
OF_THE_OVERLAY = (
    # Emission, planning and the names of buffers are amendments.
    "tests/exir/passes/test_copies.py::test_a_mutated_buffer_lives_on_its_device",
    "tests/exir/passes/test_state_programs.py",
)


def our_file(path: str) -> Path:
    """Return our file for ``path`` in the folder that upstream's packages are in."""
    for package, folder in FOLDERS.items():
        if path.startswith(f"{package}/"):
            return folder / path.removeprefix(f"{package}/")
    raise ValueError(f"{path} is in none of {', '.join(FOLDERS)}")


def path_of(module: str) -> str:
    """Return the path of ``module`` there."""
    name = module.replace(".", "/")
    single = f"{name}.py"
    return single if our_file(single).is_file() else f"{name}/__init__.py"


def files_of(patch: Patch) -> dict[str, Path | None]:
    """Return the paths of the patch's files there, with upstream's own file if it has one."""
    modules = {path_of(name): locate(name) for name in (*patch.replaces, *patch.adds)}
    return modules | dict.fromkeys(patch.data)


def diff_of(patch: Patch, without: Container[str] = ()) -> str:
    """Return the patch as a unified diff against the installed releases.

    Args:
        patch: May share files that it adds with others.
        without: Paths to leave out, since another patch has brought them.
    """
    lines = []
    for path, installed in files_of(patch).items():
        if path in without:
            continue
        ours = our_file(path).read_text().splitlines(keepends=True)
        before = (
            [] if installed is None else installed.read_text().splitlines(keepends=True)
        )
        lines += difflib.unified_diff(
            before,
            ours,
            f"a/{path}" if before else "/dev/null",
            f"b/{path}",
        )
    text = f"{patch.name}: {patch.summary}\n\n{patch.pull_request}\n"
    if patch.amends:
        text += "Without its amendments of upstream's modules, which are no files.\n"
    return f"{text}\n{''.join(lines)}"


def write(patches: list[Patch], folder: Path) -> None:
    """Write one diff per patch to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for patch in patches:
        file = folder / f"{patch.name}.patch"
        file.write_text(diff_of(patch))
        count = len(files_of(patch))
        print(f"{file}: {count} files, {len(file.read_text().splitlines())} lines")


def check(patches: list[Patch]) -> int:
    """Run the tests of each patch in a copy of upstream; return how many patches failed."""
    failed = 0
    for patch in patches:
        with TemporaryDirectory() as folder:
            copy = Path(folder)
            applied = [each for each in PATCHES if each.name in patch.requires] + [
                patch
            ]
            _copy_upstream(copy, applied)
            brought: set[str] = set()
            for each in applied:
                _apply(each, copy, brought)
                brought |= files_of(each).keys()
            done = _run_tests(patch, copy)
        failed += done.returncode != 0
        print(f"{patch.name}: {_last_line(done.stdout)}", flush=True)
        if done.returncode != 0:
            print(done.stdout[-6000:], done.stderr[-2000:])
    return failed


def _copy_upstream(copy: Path, patches: list[Patch]) -> None:
    """Link the installed packages into ``copy``; what the patches touch is a file of its own."""
    touched = {copy / path_of(module) for patch in patches for module in patch.replaces}
    for package in ("torch_tensorrt", "executorch"):
        spec = find_spec(package)
        assert spec is not None and spec.submodule_search_locations is not None
        for location in spec.submodule_search_locations:
            _mirror(Path(location), copy / package, touched)


def _mirror(source: Path, target: Path, touched: set[Path]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for entry in source.iterdir():
        new = target / entry.name
        if entry.name == "__pycache__" or new.exists():
            continue
        if entry.is_dir():
            _mirror(entry, new, touched)
        elif new in touched or entry.suffix == ".py":
            new.write_bytes(entry.read_bytes())
        else:
            new.symlink_to(entry)


def _apply(patch: Patch, copy: Path, brought: Container[str]) -> None:
    if not (patch.replaces or patch.adds):
        return
    command = ["patch", "-p1", "--quiet", "--forward", "--directory", str(copy)]
    diff = diff_of(patch, without=brought)
    subprocess.run(command, input=diff, text=True, check=True)


def _run_tests(patch: Patch, copy: Path) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if not patch.amends and all(m.startswith("executorch.") for m in patch.modules):
        environment["TORCHTRT_EXECUTORCH"] = "0"
    environment["PYTHONPATH"] = os.pathsep.join((str(copy), str(ROOT / "tools")))
    environment["MERGED_COPY"] = str(copy)
    environment["MERGED_MODULES"] = ",".join((*patch.replaces, *patch.adds))
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        *(("-p", "in_copy") if patch.replaces or patch.adds else ()),
        *TESTS[patch.name],
        *(f"--deselect={test}" for test in OF_THE_OVERLAY),
    )
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True
    )


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["nothing ran"])[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("write", "check"))
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--to", type=Path, default=ROOT / "patches")
    arguments = parser.parse_args()
    verdicts = verdicts_on(PATCHES)
    patches = [
        patch
        for patch in PATCHES
        if patch.name in (arguments.names or TESTS)
        and verdicts[patch.name].state is State.IN_FORCE
    ]
    if arguments.what == "check":
        return min(check(patches), 1)
    write(patches, arguments.to)
    return 0


if __name__ == "__main__":
    sys.exit(main())
