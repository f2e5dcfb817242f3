"""A patch that is turned off, unknown to a release, or has lost an anchor: upstream, untouched."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.upstream import installed_release

AOTI = "executorch.backends.aoti.aoti_partitioner"
DEVICES = "executorch.exir.passes.propagate_device_pass"
PROGRAM = "executorch.exir.program._program"

# Where each module is from, and what of torchtrt_executorch amends the functions of _program.
EXECUTORCH = f"""
import importlib, json, torch
program = importlib.import_module("{PROGRAM}")
files = [importlib.import_module(name).__file__ for name in ("{AOTI}", "{DEVICES}")]
functions = [program.to_edge, program.ExecutorchProgramManager.save]
files += [function.__code__.co_filename for function in functions]
print(json.dumps(files))
"""


def upstreams(files: list[str]) -> list[bool]:
    """Whether each file is one of ExecuTorch's own."""
    parts = [Path(file).parts for file in files]
    return ["executorch" in each and "edited" not in each for each in parts]


def release(folder: Path, distribution: str, version: str) -> Path:
    """Claim that another release of ``distribution`` is installed, in ``folder``."""
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    return folder


def test_skip(run) -> None:
    """Skipped by name, without a warning; others are in force."""
    process = run(
        "import importlib.util, json, torch\n"
        "import executorch.backends\n"
        "from torchtrt_executorch.overlay.manifest import PATCHES\n"
        "from torchtrt_executorch.overlay.patch import patch_status\n"
        f"file = importlib.util.find_spec('{AOTI}').origin\n"
        "reasons = {patch.name: patch_status(patch).reason for patch in PATCHES}\n"
        "print(json.dumps([file, reasons]))",
        TORCHTRT_EXECUTORCH_SKIP="aoti-partitioner, host",
    )
    file, reasons = process.facts
    assert upstreams([file]) == [True]
    skipped = {name for name, reason in reasons.items() if "SKIP" in reason}
    assert skipped == {"aoti-partitioner", "host"}
    assert process.warnings == []


def test_unknown_release(run, tmp_path: Path) -> None:
    ahead = release(tmp_path, "executorch", "9.9")
    process = run(EXECUTORCH, ahead)
    assert upstreams(process.facts) == [True] * 4
    meant = [
        patch.name
        for patch in PATCHES
        if "executorch" in patch.releases
        and patch.modules
        and all(map(installed_release, patch.releases))
        and "9.9" not in SpecifierSet(patch.superseded.get("executorch", "<0"))
    ]
    assert sorted(text.split()[2] for text in process.warnings) == sorted(meant)
    said = "executorch 9.9 is not a release it knows"
    assert all(said in warning for warning in process.warnings)


@pytest.mark.parametrize("supported", ["1.4.1", "1.5.1"])
def test_a_patch_for_other_supported_releases_is_left_out_without_a_word(
    run, tmp_path: Path, supported: str
) -> None:
    """What of upstream's source has no place there is another matter: ``make lanes`` reads each release's own."""
    process = run(EXECUTORCH, release(tmp_path, "executorch", supported))
    assert not [text for text in process.warnings if "is not a release" in text]


#: A buffer that two methods share, without what keeps it on a device.
SHARING = """
import json, torch
from executorch.exir import ExecutorchBackendConfig, to_edge
from executorch.exir.passes import MemoryPlanningPass
from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import patch_statuses

class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(4))
    def forward(self, x):
        self.count.add_(1)
        return x + self.count

program = torch.export.export(Counting(), (torch.ones(4),))
planning = MemoryPlanningPass(share_mutable_buffers=True)
config = ExecutorchBackendConfig(memory_planning_pass=planning)
to_edge({"one": program, "other": program}).to_executorch(config)
print(json.dumps({name: each.state.value for name, each in patch_statuses(PATCHES).items()}))
"""


def test_missing_anchor(run, variant) -> None:
    """One anchor is lost; nothing of its patch is applied, in none of its modules."""
    ahead = variant(
        "torch_tensorrt",
        "dynamo/runtime/_MutableTorchTensorRTModule.py",
        lambda text: text.replace("pytorch_model", "renamed_model"),
    )
    process = run(
        "import json, inspect, torch_tensorrt as tt\n"
        "from torch_tensorrt.dynamo import _compiler\n"
        "names = [*inspect.signature(tt.compile).parameters, *vars(tt.dynamo.CompilationSettings()),"
        " *vars(_compiler), *inspect.signature(tt.MutableTorchTensorRTModule).parameters]\n"
        "others = [tt.save.__code__.co_filename]\n"
        "print(json.dumps([tt.__file__, names, others]))",
        ahead,
    )
    file, names, others = process.facts
    assert Path(file).is_relative_to(ahead)
    assert not {"target_executorch", "_output_allocator_ops"} & set(names)
    assert upstreams(others) == [False]  # other patches are in force
    (warning,) = process.warnings
    assert warning.startswith("the patch target-executorch is left out")
    assert "MutableTorchTensorRTModule.__init__ has no pytorch_model" in warning


def test_missing_anchor_of_executorch(run, variant) -> None:
    """Likewise: in neither of two modules that have all that is edited of them."""
    ahead = variant(
        "executorch",
        "backends/cuda/triton/replacement_pass.py",
        lambda text: text.replace("EDGE_TO_TRITON_KERNELS", "RENAMED"),
    )
    code = (
        "import importlib.util, json, torch\n"
        "from executorch.backends.aoti.passes import replace_view_copy_with_view as views\n"
        "from executorch.backends.cuda.passes import replace_int64_floordiv as floors\n"
        "from executorch.exir.program import _program as program\n"
        "functions = [views.ReplaceViewCopyWithViewPass.call,"
        " floors.ReplaceInt64FloorDivWithFloatPass.call, program.to_edge]\n"
        "files = [function.__code__.co_filename for function in functions]\n"
        "added = importlib.util.find_spec('executorch.backends.cuda._compile_spec_check')\n"
        "print(json.dumps([files, added is not None]))"
    )
    files, added = run(code).facts
    assert upstreams(files) == [False] * 3 and added
    process = run(code, ahead)
    files, added = process.facts
    assert Path(files[0]).is_relative_to(ahead)
    assert upstreams(files) == [True, True, False]  # other patches are in force
    assert not added
    (warning,) = process.warnings
    assert warning.startswith("the patch cuda-operators is left out")
    assert "no EDGE_TO_TRITON_KERNELS in executorch.backends.cuda.triton" in warning
