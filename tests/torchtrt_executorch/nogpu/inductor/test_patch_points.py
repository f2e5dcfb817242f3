"""The names that a target device overrides: each has a reason, and is where its row says."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
from executorch.backends.cuda.tuning.gpu_properties import properties
from packaging.specifiers import SpecifierSet

from torchtrt_executorch.nogpu.cross import toolchain
from torchtrt_executorch.nogpu.cuda_backend import cross_compiler
from torchtrt_executorch.nogpu.inductor import patch_points, target_device
from torchtrt_executorch.nogpu.target.gpu_description import PLATFORMS, GpuDescription
from torchtrt_executorch.nogpu.thread_scope import lookup

from ....backends.cuda.conftest import needs_compilers

#: Names that are for everybody.
PUBLIC = {
    "torch._inductor:aot_compile",
    "torch.export.passes:move_to_device_pass",
    "torch.utils.cpp_extension:include_paths",
    "torch.utils.cpp_extension:library_paths",
}


def is_public(path: str) -> bool:
    return path in PUBLIC or path.startswith("torch.cuda:") and ":_" not in path


@pytest.mark.parametrize("path", patch_points.PATCH_POINTS)
def test_it_is_in_the_releases_that_it_says(path: str) -> None:
    seam = patch_points.PATCH_POINTS[path]
    installed = version(path.partition(".")[0])
    there = SpecifierSet(seam.releases, prereleases=True).contains(installed)
    assert (lookup(path) is not None) == there
    assert seam.why and (there or not seam.required)


@pytest.mark.parametrize("path", patch_points.REMEMBERING)
def test_what_remembers_is_there(path: str) -> None:
    found = patch_points.isolated_caches()
    assert path in found or any(name.startswith(f"{path}:") for name in found)


@needs_compilers
@pytest.mark.parametrize("path", patch_points.PATCH_POINTS)
def test_a_release_without_it_is_compiled_with_or_refused(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    gpu = properties(GpuDescription.parse("linux-x86_64:sm_90:80GiB"))
    found = toolchain.find(lambda: Path(), None)
    with target_device.target_device_scope(gpu, found):
        pass  # what is imported on the way has the name
    if lookup(path) is not None:
        module, _, names = path.partition(":")
        owner, _, name = names.rpartition(".")
        holder = lookup(f"{module}:{owner}") if owner else import_module(module)
        monkeypatch.delattr(holder, name)
    is_required = patch_points.PATCH_POINTS[path].required and lookup(path) is None
    try:
        with target_device.target_device_scope(gpu, found):
            assert not is_required
    except NotImplementedError as error:
        assert path.rpartition(":")[2].rpartition(".")[2] in str(error)


@needs_compilers
@pytest.mark.parametrize("platform", PLATFORMS)
def test_each_override_has_its_row_and_each_row_an_override(
    monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    asked: dict[str, object] = {}

    class Asked(Exception):
        pass

    def note(overrides: dict[str, object], **_: object) -> None:
        asked.update(overrides)
        raise Asked

    monkeypatch.setattr(target_device, "overriding", note)
    gpu = properties(GpuDescription.parse(f"{platform}:sm_90:80GiB"))
    try:
        compiler = cross_compiler(gpu)
    except RuntimeError:
        pytest.skip("compiled by zig: pip install torchtrt-executorch[cross]")
    found = toolchain.find(lambda: Path(), compiler)
    with pytest.raises(Asked), target_device.target_device_scope(gpu, found):
        pass
    ours = {path for path in asked if not is_public(path)} - {
        *patch_points.isolated_caches()
    }
    rows = {*patch_points.PATCH_POINTS} - {*patch_points.isolated_caches()}
    assert ours <= rows
    if platform.startswith("windows"):  # for which integers are written as well
        assert ours == rows
