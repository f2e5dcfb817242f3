"""How `examples/cpp` is built with Torch-TensorRT's delegate: what CMake takes, and what it says is missing.

The delegate's sources are upstream's, and TensorRT NVIDIA's: both are stood in for by files of a few lines.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

_HEADER = """#pragma once
#include <NvInfer.h>
#include <cuda_runtime.h>
namespace torch_tensorrt::executorch_backend {
struct CudaStreamGuard {
  explicit CudaStreamGuard(cudaStream_t);
};
}
"""
_SOURCE = """#include <executorch/runtime/backend/interface.h>
#include <torch_tensorrt/executorch/TensorRTBackend.h>
using namespace executorch::runtime;
torch_tensorrt::executorch_backend::CudaStreamGuard::CudaStreamGuard(cudaStream_t) { createInferRuntime_INTERNAL(); }
struct NoGpu final : BackendInterface {
  bool is_available() const override { return false; }
  Result<DelegateHandle*> init(BackendInitContext&, FreeableBuffer*, ArrayRef<CompileSpec>) const override {
    return Error::NotSupported;
  }
  Error execute(BackendExecutionContext&, DelegateHandle*, Span<EValue*>) const override { return Error::NotSupported; }
};
NoGpu backend;
const auto registered = register_backend({"TensorRTBackend", &backend});
"""
#: 2.14's and later, which take their stream from ExecuTorch's CUDA extension.
_LATER = "#include <executorch/extension/cuda/caller_stream.h>\n"


def check(package: Path, folder: Path) -> list[str]:
    """Configure and build in each way, below ``folder``; return what is wrong.

    Args:
        package: The folder of ``executorch``, whose wheel has no CUDA backend.
    """
    shutil.rmtree(folder, ignore_errors=True)
    source, tensorrt = folder / "TensorRT", folder / "tensorrt"
    files = {
        source / "cpp/include/torch_tensorrt/executorch/TensorRTBackend.h": _HEADER,
        source / "cpp/src/torch_tensorrt/executorch/TensorRTBackend.cpp": _SOURCE,
        folder / "later/cpp/include/torch_tensorrt/executorch/TensorRTBackend.h": "",
        folder / "later/cpp/src/torch_tensorrt/executorch/TensorRTBackend.cpp": _LATER,
        tensorrt / "include/NvInfer.h": 'extern "C" int createInferRuntime_INTERNAL();',
        tensorrt / "nvinfer.cpp": 'extern "C" int createInferRuntime_INTERNAL() {}',
    }
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tensorrt / "lib").mkdir()
    library = (
        f"g++ -w -shared -fPIC -o {tensorrt}/lib/libnvinfer.so {tensorrt}/nvinfer.cpp"
    )
    subprocess.run(library.split(), check=True)
    root = f"-DTENSORRT_ROOT={tensorrt}"
    expected = {
        f"-DTORCH_TENSORRT_SOURCE={folder}/nothing": "clone pytorch/TensorRT at the release",
        f"-DTORCH_TENSORRT_SOURCE={source} -DTENSORRT_ROOT={folder}/nothing": "TENSORRT_INCLUDE_DIR wasn't found",
        f"-DTORCH_TENSORRT_SOURCE={folder}/later {root}": "or take Torch-TensorRT 2.13's",
        f"-DTORCH_TENSORRT_SOURCE={source} {root}": "",
    }
    wrong = []
    for index, (options, words) in enumerate(expected.items()):
        build = folder / f"build_{index}"
        said = _configure(package, build, options)
        if (words or "Build files have been written") not in said:
            wrong.append(f"cmake {options} said: {said[-1500:]}")
    if not wrong:
        made = subprocess.run(
            ["cmake", "--build", str(build)], capture_output=True, text=True
        )
        host = subprocess.run([build / "host"], capture_output=True, text=True)
        if made.returncode or "MODEL.pte" not in host.stderr:
            wrong.append(f"{made.stdout[-2000:]}{made.stderr[-2000:]}{host.stderr}")
    return wrong


def _configure(package: Path, build: Path, options: str) -> str:
    example = Path(__file__).parents[2] / "examples" / "cpp"
    command = ["cmake", "-S", example, "-B", build, f"-DCMAKE_PREFIX_PATH={package}"]
    done = subprocess.run(
        [*map(str, command), *options.split()], capture_output=True, text=True
    )
    return " ".join((done.stdout + done.stderr).split())


if __name__ == "__main__":
    sys.exit("\n".join(check(Path(sys.argv[1]), Path(sys.argv[2]))))
