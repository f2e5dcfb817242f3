"""Which TensorRT is installed, and what is said of an installation that can't be right."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from torchtrt_executorch.nogpu.builder import installed
from torchtrt_executorch.nogpu.builder.installed import (
    BUILDERS,
    TENSORRT,
    TENSORRT_RTX,
    installed_builder,
    problems,
)
from torchtrt_executorch.overlay.upstream import (
    distribution_release,
    installed_release,
)

from ....loading import load_file
from ....without_torch_tensorrt import reason


def distribution(folder: Path, name: str, release: str, *requires: str) -> None:
    """Put a distribution's metadata ahead on the path."""
    metadata = folder / f"{name.replace('-', '_')}-{release}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {release}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    metadata.write_text("\n".join(lines) + "\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that alone has distributions in it."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    installed_builder.cache_clear()
    yield tmp_path
    installed_builder.cache_clear()


def test_this_installation_is_in_order() -> None:
    """But for the trial of a TensorRT-RTX that upstream doesn't require yet, which is said in one sentence."""
    if reason():
        pytest.skip(reason())
    here = installed_builder()
    assert version(here.distribution) == installed_release("torch-tensorrt")
    load_file("tools/environment.py")  # beside it, for a script
    trial = load_file("tools/needed.py").lane() == "2.14-rtx-1.7"
    expected = ["is made for TensorRT-RTX"] if trial else []
    for words, problem in zip(expected, problems(), strict=True):
        assert words in problem


@pytest.mark.parametrize("installed", BUILDERS, ids=lambda b: b.name)
def test_either_counts_as_torch_tensorrt(folder: Path, installed) -> None:
    distribution(folder, installed.distribution, "2.13.0")
    assert installed_release("torch-tensorrt") == "2.13.0"
    assert installed_builder() is installed
    (other,) = set(BUILDERS) - {installed}
    assert distribution_release(other.distribution) is None


def test_neither(folder: Path) -> None:
    assert installed_release("torch-tensorrt") is None
    (problem,) = problems()
    assert "neither torch-tensorrt nor torch-tensorrt-rtx is installed" in problem


def test_both(folder: Path) -> None:
    for each in BUILDERS:
        distribution(folder, each.distribution, "2.13.0")
    (problem,) = problems()
    assert "torch-tensorrt and torch-tensorrt-rtx are both installed" in problem
    assert "pip uninstall torch-tensorrt torch-tensorrt-rtx" in problem
    assert installed_builder() is TENSORRT_RTX  # as upstream has it


@pytest.mark.parametrize(
    ("installed", "wanted"),
    [
        (TENSORRT, "tensorrt<11.1.0,>=11.0.0"),
        (TENSORRT_RTX, "tensorrt_rtx<1.6.0.0,>=1.5.0.114"),
    ],
    ids=["TensorRT", "TensorRT-RTX"],
)
@pytest.mark.parametrize("fits", [True, False])
def test_a_builder_of_another_release(
    folder: Path, installed, wanted: str, fits: bool
) -> None:
    distribution(folder, installed.distribution, "2.13.0", wanted, "torch>=2.13")
    found = {TENSORRT: "11.0.0.114", TENSORRT_RTX: "1.5.0.114"}[installed]
    found = found if fits else "12.0.0.1"
    distribution(folder, installed.bindings[0], found)
    told = list(problems())
    assert bool(told) == (not fits)
    for problem in told:
        assert installed.distribution in problem and "12.0.0.1 is installed" in problem
        assert "pip install" in problem


needs_rtx = pytest.mark.skipif(
    installed_builder() is not TENSORRT_RTX, reason="needs TensorRT-RTX"
)


@needs_rtx
def test_a_broken_install_is_one_sentence_with_the_command(
    host, tmp_path: Path
) -> None:
    """The library is cut short, as a full disk leaves it."""
    package = tmp_path / "tensorrt_rtx_libs"
    package.mkdir()
    (package / "__init__.py").write_text("raise OSError('file too short')\n")
    result = host.run("import torch_tensorrt", PYTHONPATH=str(tmp_path))
    assert result.returncode
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "torchtrt_executorch.nogpu.builder.installed.BrokenInstallError"
    )
    assert "file too short" in last
    release = version("tensorrt-rtx-cu13-libs")
    assert f"tensorrt-rtx-cu13-libs=={release}" in last
    assert "pip install --force-reinstall --no-deps" in last


@needs_rtx
def test_a_missing_library_is_the_same_sentence(host, tmp_path: Path) -> None:
    package = tmp_path / "tensorrt_rtx_bindings"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('libtensorrt_rtx.so.1')\n")
    result = host.run("import torch_tensorrt", PYTHONPATH=str(tmp_path))
    last = result.stderr.strip().splitlines()[-1]
    assert "BrokenInstallError" in last and "libtensorrt_rtx.so.1" in last


def test_what_is_wrong_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(installed, "problems", lambda: iter(["this and that"]))
    installed.check_installed.cache_clear()
    try:
        installed.check_installed()
        installed.check_installed()
    finally:
        installed.check_installed.cache_clear()
    assert [str(w.message) for w in recwarn if "this and that" in str(w.message)] == [
        "torchtrt-executorch: this and that"
    ]
