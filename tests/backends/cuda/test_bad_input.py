"""One clear error each, nothing half-written, and no patched function left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from executorch.backends.cuda.tuning.gpu_properties import properties
from executorch.exir.backend.compile_spec_schema import CompileSpec

from torchtrt_executorch.cache import SWITCH
from torchtrt_executorch.nogpu.cross import toolchain
from torchtrt_executorch.nogpu.cross.toolchain import ToolchainError
from torchtrt_executorch.nogpu.cuda_backend import DRIVER, target_gpu
from torchtrt_executorch.nogpu.stubs.stub_libraries import LinkStubError
from torchtrt_executorch.nogpu.target.gpu_description import GpuDescription

from ... import fresh
from .conftest import needs_compilers, without_gpu

pytestmark = pytest.mark.builds

#: What there is to compile for, at least.
CAPABILITIES = ("80", "86", "87", "89", "90", "100", "120")


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_each_capability_has_properties(capability: str) -> None:
    gpu = properties(GpuDescription.parse(f"sm_{capability}:16GiB"))
    assert gpu.major * 10 + gpu.minor == int(capability)
    assert gpu.total_memory == 16 << 30
    assert (
        gpu.shared_memory_per_block_optin
        < gpu.shared_memory_per_multiprocessor
        <= 228 << 10
    )
    assert gpu.max_threads_per_multi_processor in (1536, 2048)


def test_an_unknown_capability_is_told_which_are_known() -> None:
    with pytest.raises(ValueError, match=r"sm_52.*they can for .*sm_90"):
        properties(GpuDescription.parse("sm_52:4GiB"))


def test_a_compile_spec_overrules_the_variable() -> None:
    gpu = target_gpu([CompileSpec("gpu", b"sm_87:32GiB")])
    assert gpu is not None and gpu.capability == (8, 7)


def test_a_misdescribed_gpu_in_a_compile_spec() -> None:
    with pytest.raises(ValueError, match="Write the compute capability"):
        target_gpu([CompileSpec("gpu", b"H100")])


def test_no_cpp_compiler(monkeypatch) -> None:
    from torch._inductor import cpp_builder, exc

    def nothing_found() -> str:
        raise exc.InvalidCxxCompiler()

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", nothing_found)
    with pytest.raises(ToolchainError, match=r"no C\+\+ compiler.*apt-get install"):
        toolchain.check_compiler()


@pytest.fixture
def folders(monkeypatch, tmp_path: Path):
    """Make folders with CUDA's headers, of given releases, and let nothing else be found."""

    def make(*releases: int) -> list[Path]:
        made = []
        for release in releases:
            include = tmp_path / f"cuda-{release}" / "include"
            for name in ("cuda_runtime_api.h", "crt/host_config.h", "nv/target"):
                (include / name).parent.mkdir(parents=True, exist_ok=True)
                (include / name).touch()
            (include / "cuda.h").write_text(f"#define CUDA_VERSION {release}000\n")
            made.append(include.parent)
        monkeypatch.setattr(toolchain, "folders", lambda: iter(made))
        return made

    return make


def test_headers_of_pytorch_s_release_are_taken(folders, monkeypatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    _, right = folders(12, 13)
    assert toolchain.home() == right


def test_headers_of_another_release(folders, monkeypatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    folders(11, 12)
    with pytest.raises(ToolchainError, match=r"of CUDA 13.*CUDA 11.*CUDA 12.*pip"):
        toolchain.home()


def test_no_headers(folders) -> None:
    (home,) = folders(13)
    (home / "include" / "nv" / "target").unlink()
    with pytest.raises(ToolchainError, match=rf"nv/target.*{home}.*pip install"):
        toolchain.home()


@needs_compilers
def test_no_place_for_the_link_stub(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(SWITCH, str(tmp_path / "file"))
    with pytest.raises(LinkStubError, match=f"NVIDIA driver.*Set {SWITCH}"):
        toolchain.find(DRIVER.build)


#: Hides Triton, then does what a partitioner's user does.
WITHOUT_TRITON = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: (
    None if name.partition(".")[0] == "triton" else real(name, package))
sys.meta_path.insert(0, Hidden())
import torch
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.exir import to_edge_transform_and_lower
partitioner = CudaPartitioner([CudaBackend.generate_method_name_compile_spec("forward")])
program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
print(len(partitioner.partition(program).partition_tags))
try:
    import executorch.backends.cuda.triton.kernels
except ModuleNotFoundError as error:
    print(error)
to_edge_transform_and_lower(program, partitioner=[partitioner])
"""


@without_gpu
def test_without_triton_the_partitioner_works_and_lowering_says_what_to_do() -> None:
    done = fresh.python(WITHOUT_TRITON, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.stdout.splitlines() == ["1", "No module named 'triton'"], done.stderr
    *_, last = done.stderr.splitlines()
    assert "ToolchainError: CUDA delegates are compiled by Triton" in last
    assert 'pip install "torchtrt-executorch[cuda]" triton==' in last
