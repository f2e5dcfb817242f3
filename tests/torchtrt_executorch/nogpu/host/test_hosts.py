"""``import torch_tensorrt`` on this host, whichever kind it is, and on the kinds it can pass for.

CUDA devices can be hidden from a process; TensorRT's libraries can't be conjured up. So what
holds without a GPU is tested everywhere, the rest where the host has it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from torchtrt_executorch.nogpu.builder.installed import installed_builder
from torchtrt_executorch.nogpu.host import present
from torchtrt_executorch.nogpu.stubs import link_stubs

pytestmark = pytest.mark.skipif(
    present.bindings_version() is None, reason="no TensorRT bindings are installed"
)
without_libraries = pytest.mark.skipif(
    present.tensorrt_libraries(), reason="this host has TensorRT's libraries"
)
cannot_build = pytest.mark.skipif(
    not installed_builder().needs_gpu, reason="this host's builder needs no GPU"
)
with_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="this host has no CUDA device"
)

MODEL = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        y = torch.relu(x * 2)
        return y, (y > 1).nonzero()
"""

INSPECT = MODEL + """
isfile, fake, fake_class = os.path.isfile, torch.library.register_fake, torch._library.register_fake_class
queries = ("current_device", "default_stream", "get_device_properties", "mem_get_info")
cuda = [getattr(torch.cuda, name) for name in queries]
import torch_tensorrt as tt
import tensorrt
from torch_tensorrt.dynamo import _defaults, utils
from torch_tensorrt.dynamo.conversion import DYNAMO_CONVERTERS
from torchtrt_executorch.nogpu.host.building import BINDINGS_CLASSES
import torch_tensorrt.dynamo.runtime.meta_ops.register_meta_ops

def error_of(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except Exception as error:
        return [type(error).__name__, str(error)]

x = torch.randn(2, 3)
arguments = dict(ir="dynamo", arg_inputs=[x], min_block_size=1)
program = torch.export.export(Model(), (x,))
dry = tt.compile(Model(), dryrun=True, **arguments)
device = tt.Device("cuda:1")
facts = {
    "restored": [
        os.path.isfile is isfile,
        torch.library.register_fake is fake,
        torch._library.register_fake_class is fake_class,
        [getattr(torch.cuda, name) for name in queries] == cuda,
        hasattr(torch._C, "_CudaDeviceProperties") == (torch.version.cuda is not None),
    ],
    "runtime loaded": "libtorchtrt" in open("/proc/self/maps").read(),
    "runtime feature": tt.ENABLED_FEATURES.torch_tensorrt_runtime,
    "bindings": tensorrt.__version__,
    "relu has a converter": torch.ops.aten.relu.default in DYNAMO_CONVERTERS,
    "partitions": [n for n, _ in dry.named_children()],
    "agrees": torch.equal(dry(x)[0], Model()(x)[0]),
    "default device": _defaults.default_device().gpu_id,
    "torch device": str(device.to(torch.device)),
    "round trip": tt.Device._from(device.to(torch.device)).gpu_id,
    "moved to": str(utils.to_torch_device(device)),
    "torch.cuda asked": error_of(torch.cuda.current_device),
    "placeholder": hasattr(torch.ops.tensorrt, "no_op_placeholder_for_execute_engine"),
    "errors": [
        error_of(tt.compile, Model(), **arguments),
        error_of(tt.dynamo.compile, program, arg_inputs=[x]),
        error_of(tt.convert_method_to_trt_engine, Model(), ir="dynamo", arg_inputs=[x]),
        error_of(torch.compile(Model(), backend="torch_tensorrt", options={"min_block_size": 1}), x),
    ],
    "classes": [
        error_of(getattr(tensorrt, name), tensorrt.Logger()) for name in BINDINGS_CLASSES
    ],
}
print(json.dumps(facts))
"""


def has_stubs(cache: Path) -> bool:
    stubs = link_stubs.cache_directory(str(present.bindings_version()))
    return any(cache.rglob(stubs.name))


@pytest.fixture(scope="module")
def facts(host) -> Any:
    """What a process on a host without a GPU finds."""
    result = host.run(INSPECT, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0, result.stderr
    return {"log": result.stderr, **json.loads(result.stdout.splitlines()[-1])}


def test_it_is_imported_and_leaves_the_rest_of_python_as_it_was(facts) -> None:
    """PyTorch itself still says that there is no GPU, and nobody is asked for another one."""
    assert facts["restored"] == [True] * 5
    assert facts["torch.cuda asked"] is not None
    assert "reinstall" not in facts["log"]


def test_the_cpp_runtime_is_left_out_and_the_rest_is_real(facts) -> None:
    """Bindings and registries are, with what an export needs."""
    assert not facts["runtime loaded"]
    assert not facts["runtime feature"]
    assert facts["bindings"] == present.bindings_version()
    assert facts["relu has a converter"]
    assert facts["placeholder"]


def test_a_dry_run_partitions(facts) -> None:
    """For devices that are CUDA's by name, and the processor by place."""
    assert len(facts["partitions"]) == 1
    assert facts["agrees"]
    assert facts["default device"] == 0
    assert facts["torch device"] == "cuda:1"
    assert facts["round trip"] == 1
    assert facts["moved to"] == "cpu"


@cannot_build
def test_a_real_compile_fails_at_once_with_the_three_ways_on(facts) -> None:
    for kind, message in facts["errors"]:
        assert kind in {"TensorRTUnavailableError", "BackendCompilerFailed"}
        for part in ("CUDA device", "dryrun=True", "emulated_engines()", "machine"):
            assert part in message


@without_libraries
def test_what_is_missing_is_named_by_classes_of_the_bindings_too(facts) -> None:
    assert "libnvinfer.so." in facts["errors"][0][1]
    for error in facts["classes"]:
        assert error == facts["errors"][0]


def test_the_described_gpu_is_what_upstream_sees(host) -> None:
    """Also in a notebook, where a bad description is corrected and the import repeated."""
    facts = host.facts(
        """
try:
    import torch_tensorrt
except ValueError:
    os.environ["TORCHTRT_GPU"] = "sm_87:16GiB"
import torch_tensorrt
from torch_tensorrt import _utils
from torch_tensorrt.dynamo import _compiler
print(json.dumps([_utils.is_orin(), _utils.is_thor(), _compiler.torch.cuda.mem_get_info()]))
""",
        CUDA_VISIBLE_DEVICES="",
        TORCHTRT_GPU="H100",
    )
    assert facts == [True, False, [16 * 1024**3] * 2]


IMPORTS = pytest.mark.parametrize(
    "imports",
    [
        "import torch, torch_tensorrt",
        "import torch_tensorrt",
        pytest.param(
            "from torchtrt_executorch.nogpu import host; host.prepare(); import tensorrt",
            marks=cannot_build,  # it is torch_tensorrt that gives the name to TensorRT-RTX
        ),
    ],
)


@IMPORTS
def test_a_bad_description_is_the_error_of_the_import(host, imports: str) -> None:
    result = host.run(imports, alone=True, CUDA_VISIBLE_DEVICES="", TORCHTRT_GPU="H100")
    last = result.stderr.splitlines()[-1]
    assert last.startswith("ValueError: TORCHTRT_GPU='H100'")


@without_libraries
@IMPORTS
def test_no_compiler_is_the_error_of_the_import(fresh_host, imports: str) -> None:
    result = fresh_host.run(imports, alone=True, CC="/no/such/cc")
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"{link_stubs.__package__}.stub_libraries.LinkStubError")
    assert "'/no/such/cc' was not found" in last
    assert not has_stubs(fresh_host.cache)


def test_a_failed_import_restores_everything(host) -> None:
    """``dllist`` is imported while ``_features`` executes, within its scope."""
    facts = host.facts(
        """
import torch
isfile = os.path.isfile
sys.modules["dllist"] = None
try:
    import torch_tensorrt
except ImportError as error:
    print(json.dumps(["dllist" in str(error), os.path.isfile is isfile]))
""",
        CUDA_VISIBLE_DEVICES="",
    )
    assert facts == [True, True]


def test_importing_the_package_is_cheap(host) -> None:
    assert host.facts("""
import subprocess
code = "import sys, torchtrt_executorch.nogpu.host; print('torch' in sys.modules or 'wrapt' in sys.modules)"
print(json.dumps(subprocess.run([sys.executable, "-c", code], text=True, capture_output=True).stdout))
""").strip() == str(False)


@without_libraries
def test_libraries_without_a_gpu(host, tmp_path: Path) -> None:
    """Libraries that the loader finds are used, and only the GPU is missing.

    The stubs of another host serve as those libraries: the loader can't tell either.
    """
    cache, compiler = tmp_path / "unused", "/no/such/compiler"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHTRT_EXECUTORCH_CACHE", str(host.cache))
        libraries = link_stubs.build(str(present.bindings_version()))
        assert has_stubs(host.cache)
    kind, message, runtime_class_is_ours = host.facts(
        MODEL + """
import tensorrt, torch_tensorrt
from torchtrt_executorch.nogpu.host import building
assert not torch_tensorrt.ENABLED_FEATURES.torch_tensorrt_runtime
try:
    torch_tensorrt.compile(Model(), ir="dynamo", arg_inputs=[torch.randn(2, 3)])
except Exception as error:
    print(json.dumps([
        type(error).__name__,
        str(error),
        tensorrt.Builder.__init__ is building._unavailable,
    ]))
""",
        CUDA_VISIBLE_DEVICES="",
        LD_LIBRARY_PATH=str(libraries),
        TORCHTRT_EXECUTORCH_CACHE=str(cache),
        CC=compiler,
    )
    assert kind == "TensorRTUnavailableError"
    assert "no CUDA device" in message and "libnvinfer" not in message
    assert not runtime_class_is_ours
    assert not has_stubs(cache)


@with_gpu
@pytest.mark.gpu
def test_a_real_gpu_is_never_masked(host) -> None:
    facts = host.facts(
        """
import torch, torch_tensorrt
from torch_tensorrt.dynamo import _defaults, utils
print(json.dumps([
    _defaults.torch is torch,
    str(utils.to_torch_device(_defaults.default_device())),
    torch_tensorrt._utils.torch.cuda.get_device_capability(),
]))
""",
        TORCHTRT_GPU="sm_10:1MiB",
    )
    capability = list(torch.cuda.get_device_capability())
    assert facts == [True, f"cuda:{torch.cuda.current_device()}", capability]


@with_gpu
@pytest.mark.gpu
@without_libraries
def test_a_gpu_without_tensorrt_lacks_only_that(host) -> None:
    kind, message = host.facts(MODEL + """
import torch_tensorrt
try:
    torch_tensorrt.compile(Model(), ir="dynamo", arg_inputs=[torch.randn(2, 3).cuda()])
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
""")
    assert kind == "TensorRTUnavailableError"
    assert "libnvinfer" in message and "no CUDA device" not in message
